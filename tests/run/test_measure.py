"""``wattlaw measure``: any command, as it is, with its energy."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import paths
from conftest import environment, started, wait_for, wattlaw
from fake_nvml import FakeGpus
from trees import AcpiMeters
from wattlaw.store.store import Store


def measured(store: Path, *line: object, **options: object) -> "subprocess.CompletedProcess[str]":
    return wattlaw("measure", "-o", store, *line, **options)


@pytest.fixture
def boards(tmp_path, monkeypatch) -> FakeGpus:
    """Give two boards of 217 W under load to every process that is started from here."""
    found = FakeGpus.create(tmp_path / "boards", 2, high_w=[150.0, 300.0], limit_mw=217_000)
    for name, value in found.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WATTLAW_LIMITS_DIR", str(tmp_path / "limits"))
    return found


def test_time_and_use_of_a_command_are_printed_and_stored(tmp_path):
    busy = "import time\nwhile time.process_time() < 2: pass"  # however busy the machine is
    done = measured(tmp_path, "--json", tmp_path / "s.json", sys.executable, "-c", busy)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.count("not measured") == 1  # and not the reason of each meter
    told = json.loads((tmp_path / "s.json").read_text())
    assert told["duration_s"] > 2.0
    assert told["gpu_energy_j"] is None  # nothing measures here: missing, not zero
    assert 1.2 < told["cpu_cores"] * told["duration_s"] < 2.6
    (row,) = Store(tmp_path).pandas("epochs").to_dict("records")
    assert (row["phase"], row["energy_verdict"]) == ("run", "unavailable")


@pytest.mark.parametrize(
    ("command", "code"),
    [("/no/such/command", 127), ("no-such-command", 127), ("train", 126), ("/etc", 126)],
)
def test_a_command_that_cannot_be_used_has_the_exit_code_of_a_shell(
    tmp_path, monkeypatch, command, code
):
    (tmp_path / "train").write_text("#!/bin/sh\n")  # not executable
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:{tmp_path}")
    done = measured(tmp_path / "store", "--", command)
    assert done.returncode == code
    assert done.returncode == subprocess.run(["/bin/bash", "-c", command], check=False).returncode
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"wattlaw: '{command}': ")  # of init, too
    assert measured(tmp_path / "store", "--").returncode == 2  # no command
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(("visible", "power_w"), [(None, 150 + 217), (0, 150)])
def test_the_energy_of_all_visible_boards_is_measured_each_once(
    tmp_path, boards, monkeypatch, visible, power_w
):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", boards[visible].uuid.decode())
    done = measured(tmp_path, "--json", tmp_path / "s.json", "sleep", "1.2")
    found = json.loads((tmp_path / "s.json").read_text())
    assert found["gpu_energy_j"] == pytest.approx(power_w * found["duration_s"], rel=0.01)
    assert (found["energy_source"], found["energy_verdict"]) == ("counter", "ok")
    assert (found["energy_j"], found["energy_scope"]) == (found["gpu_energy_j"], "gpu")
    assert (found["node_energy_j"], found["node_energy_verdict"]) == (None, None)
    assert "(gpu, counter, ok)" in done.stderr


def test_the_source_of_the_energy_is_the_node_s_where_that_is_the_energy(
    tmp_path, boards, monkeypatch
):
    AcpiMeters(tmp_path / "sys", {"": 900.0})
    monkeypatch.setenv("WATTLAW_SYSFS_ROOT", str(tmp_path / "sys"))
    done = measured(tmp_path, "--json", tmp_path / "s.json", "sleep", "2")
    told = json.loads((tmp_path / "s.json").read_text())
    assert (told["energy_j"], told["energy_scope"]) == (told["node_energy_j"], "node")
    assert told["energy_j"] == pytest.approx(900 * told["duration_s"], rel=0.02)
    verdict = told["node_energy_verdict"]
    assert f"(node, integral, {verdict})" in done.stderr
    assert (told["energy_source"], told["energy_verdict"]) == ("integral", verdict)
    assert (told["devices_energy_source"], told["devices_energy_verdict"]) == ("counter", "ok")


def test_a_power_limit_applies_during_the_command_and_is_restored(tmp_path, boards):
    look = (
        f"from fake_nvml import FakeGpus; b = FakeGpus({str(boards.path)!r}); print(b[0].limit_mw)"
    )
    path = f"{paths.SUPPORT}{os.pathsep}{environment()['PYTHONPATH']}"
    line = ["env", f"PYTHONPATH={path}", sys.executable, "-c", look]
    done = measured(tmp_path, "--power-limit", "130", "--", *line)
    assert done.stdout == "130000\n"
    assert [boards[i].limit_mw for i in range(2)] == [217_000, 217_000]
    (row,) = Store(tmp_path).pandas("runs").to_dict("records")
    assert (row["power_limit_w"], row["power_limit_enforced_w"]) == (130.0, 130.0)


def test_a_limit_that_cannot_be_set_starts_nothing(tmp_path, boards):
    line = ("touch", tmp_path / "was-here")
    refused = measured(tmp_path / "s", "--power-limit", "13", "--", *line)
    assert refused.returncode == 3
    assert "13 W is outside 100 to 400 W" in refused.stderr
    refused = measured(tmp_path / "s", "--clock-limit", "735", "--", *line)
    assert (refused.returncode, "prior_clocks" in refused.stderr) == (3, True)
    boards.header.root = 0
    refused = measured(tmp_path / "s", "--power-limit", "130", "--", *line)
    assert (refused.returncode, "requires root" in refused.stderr) == (3, True)
    assert not (tmp_path / "was-here").exists()
    assert refused.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("code", "ours"), [("raise SystemExit(7)", 7), ("import os; os.abort()", 134)]
)
def test_measure_passes_the_exit_code_and_stores_failed_commands(tmp_path, code, ours):
    done = measured(tmp_path, "--", sys.executable, "-c", code)
    assert done.returncode == ours
    (record,) = Store(tmp_path).records()
    assert record.status == "failed"
    assert (tmp_path / "runs" / record.run_id / "epochs.parquet").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_signals_are_passed_on_to_the_command(tmp_path, number):
    code = (
        "import signal, sys, time\n"
        f"signal.signal({int(number)}, lambda *_: sys.exit(5))\n"
        "print('ready', flush=True)\ntime.sleep(60)"
    )
    with started("measure", "-o", tmp_path, "--", sys.executable, "-c", code) as process:
        while "ready" not in (line := process.stdout.readline()):
            assert line
        process.send_signal(number)
        assert process.wait(20) == 5
    (record,) = Store(tmp_path).records()
    assert record.reason == "exit code 5"
    assert record.state == ("failed" if number == signal.SIGUSR1 else "interrupted")


def test_output_and_input_are_untouched_and_the_same_command_again_is_a_repeat(tmp_path):
    code = "import sys; print(sys.stdin.read().upper(), end=''); print('err', file=sys.stderr)"
    for _ in range(2):
        done = measured(tmp_path, "--", sys.executable, "-c", code, input="a\nb")
        assert done.stdout == "A\nB"
        assert done.stderr.startswith("err\n")
    assert sorted(record.spec.repeat for record in Store(tmp_path).records()) == [0, 1]


def test_a_killed_measure_loses_no_more_than_a_second_of_samples(tmp_path, boards):
    with started("measure", "-o", tmp_path, "--", "sleep", "6") as process:
        wait_for(lambda: [*tmp_path.glob("runs/*/live/1/telemetry.*.csv")], "samples")
        (path,) = tmp_path.glob("runs/*/live/1/telemetry.*.csv")
        wait_for(lambda: path.read_text().count("\n") > 40, "samples")
        process.kill()
        process.wait()
    assert path.read_text().count("\n") > 40
    assert "interrupted" in wattlaw("status", tmp_path).stdout


def test_nothing_is_looked_up_online_by_any_process_of_a_measurement(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "def note(event, arguments):\n"
        "    if event in ('socket.connect', 'socket.getaddrinfo', 'socket.sendto'):\n"
        f"        open({str(tmp_path / 'online')!r}, 'a').write(f'{{event}} {{arguments}}\\n')\n"
        "sys.addaudithook(note)\n"
    )
    path = os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]])
    monkeypatch.setenv("PYTHONPATH", path)
    done = measured(tmp_path / "s", "--", "true")
    assert done.returncode == 0
    asks = "import socket; socket.getaddrinfo('localhost', 80)"
    subprocess.run([sys.executable, "-c", asks], check=True, env=os.environ | {"PYTHONPATH": path})
    assert (tmp_path / "online").read_text().splitlines() == [
        line for line in (tmp_path / "online").read_text().splitlines() if "localhost" in line
    ]
