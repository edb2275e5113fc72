"""``wattlaw measure``: any command, as it is, with its energy; steps of training scripts."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

from conftest import environment, setenv, started, wattlaw
from paths import SCRIPTS
from trees import AcpiMeters
from wattlaw.analysis.metrics.metrics import run_metrics
from wattlaw.analysis.predict.job import jobs_of
from wattlaw.cli.main import main
from wattlaw.store.store import Store
from wattlaw.study.network import Network


@pytest.fixture
def told_of(tmp_path, monkeypatch, capfd):
    """Return a function that measures a command in this process; most tests need no other one."""
    monkeypatch.setenv("COLUMNS", "120")

    def run(*line):
        words = map(str, ("measure", "-o", tmp_path, "--json", tmp_path / "s.json", *line))
        done = subprocess.CompletedProcess(line, main([*words]), *capfd.readouterr())
        told = tmp_path / "s.json"
        return json.loads(told.read_text()) if told.exists() else {}, done

    return run


@pytest.fixture
def boards(tmp_path, fake_gpus, monkeypatch):
    """Give two boards of 217 W under load to this process and every one that it starts."""
    found = fake_gpus(2, high_w=[150.0, 300.0], limit_mw=217_000)
    setenv(monkeypatch, found.environment())
    monkeypatch.setenv("WATTLAW_LIMITS_DIR", str(tmp_path / "limits"))
    return found


def test_time_and_use_of_a_command_are_printed_and_stored(tmp_path):
    busy = "import time\nwhile time.process_time() < 2: pass"  # however busy the machine is
    line = ("--json", tmp_path / "s.json", "--", sys.executable, "-c", busy)
    done = wattlaw("measure", "-o", tmp_path, *line)
    told = json.loads((tmp_path / "s.json").read_text())
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.count("not measured") == 1  # and not the reason of each meter
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
    tmp_path, monkeypatch, capsys, command, code
):
    (tmp_path / "train").write_text("#!/bin/sh\n")  # not executable
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:{tmp_path}")
    line = ["measure", "-o", str(tmp_path / "store"), "--"]
    assert main([*line, command]) == code
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith(f"wattlaw: '{command}': ")  # of init, too
    assert code == subprocess.run(["/bin/bash", "-c", command], check=False).returncode
    assert main(line) == 2  # no command
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(("visible", "power_w"), [(None, 150 + 217), (0, 150)])
def test_the_energy_of_the_visible_boards_is_measured_each_once(
    told_of, boards, monkeypatch, visible, power_w
):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", boards[visible].uuid.decode())
    found, done = told_of("sleep", "1.2")
    assert found["gpu_energy_j"] == pytest.approx(power_w * found["duration_s"], rel=0.01)
    assert (found["energy_source"], found["energy_verdict"]) == ("counter", "ok")
    assert (found["energy_j"], found["energy_scope"]) == (found["gpu_energy_j"], "gpu")
    assert (found["node_energy_j"], found["node_energy_verdict"]) == (None, None)
    assert "(gpu, counter, ok)" in done.stderr


def test_the_source_of_the_energy_is_the_node_s_where_that_is_the_energy(
    tmp_path, told_of, boards, monkeypatch
):
    AcpiMeters(tmp_path / "sys", {"": 900.0})
    monkeypatch.setenv("WATTLAW_SYSFS_ROOT", str(tmp_path / "sys"))
    told, done = told_of("sleep", "2")
    assert (told["energy_j"], told["energy_scope"]) == (told["node_energy_j"], "node")
    assert told["energy_j"] == pytest.approx(900 * told["duration_s"], rel=0.02)
    verdict = told["node_energy_verdict"]
    assert f"(node, integral, {verdict})" in done.stderr
    assert (told["energy_source"], told["energy_verdict"]) == ("integral", verdict)
    assert (told["devices_energy_source"], told["devices_energy_verdict"]) == ("counter", "ok")


def test_a_limit_that_cannot_be_set_starts_nothing(tmp_path, told_of, boards):
    line = ("--", "touch", tmp_path / "was-here")
    _, refused = told_of("--power-limit", "13", *line)
    assert refused.returncode == 3
    assert "13 W is outside 100 to 400 W" in refused.stderr
    _, refused = told_of("--clock-limit", "735", *line)
    assert (refused.returncode, "prior_clocks" in refused.stderr) == (3, True)
    boards.header.root = 0
    _, refused = told_of("--power-limit", "130", *line)
    assert (refused.returncode, "requires root" in refused.stderr) == (3, True)
    assert not (tmp_path / "was-here").exists()
    assert refused.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("code", "ours"), [("raise SystemExit(7)", 7), ("import os; os.abort()", 134)]
)
def test_measure_passes_the_exit_code_and_stores_failed_commands(tmp_path, told_of, code, ours):
    assert told_of("--", sys.executable, "-c", code)[1].returncode == ours
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
    line = ("measure", "-o", str(tmp_path), "--", sys.executable, "-c", code)
    done = wattlaw(*line, input="a\nb")
    assert done.stdout == "A\nB"
    assert done.stderr.startswith("err\n")
    assert main(line) == 0
    assert sorted(record.spec.repeat for record in Store(tmp_path).records()) == [0, 1]


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
    assert wattlaw("measure", "-o", tmp_path / "s", "--", "true").returncode == 0
    asks = "import socket; socket.getaddrinfo('localhost', 80)"
    subprocess.run([sys.executable, "-c", asks], check=True, env=os.environ | {"PYTHONPATH": path})
    assert (tmp_path / "online").read_text().splitlines() == [
        line for line in (tmp_path / "online").read_text().splitlines() if "localhost" in line
    ]


def test_a_script_is_ended_when_it_has_its_steps_and_their_energy_is_known(
    tmp_path, told_of, fake_gpus, monkeypatch
):
    setenv(monkeypatch, fake_gpus(high_w=[200.0]).environment())
    limits = ("--steps", "90", "--warmup-steps", "10", "--sample-hz", "20")
    script = (sys.executable, SCRIPTS / "plain.py", "--epochs", "100000")
    found, done = told_of(*limits, "--", *script)
    assert (done.returncode, found["exit_code"]) == (0, 0)
    assert (found["instrumented"], found["parallelism"], found["world_size"]) == (True, "none", 1)
    assert 90 - found["pauses"] == found["steps_measured"]
    assert found["steps"] >= 100
    shown = max(int(line.split()[1]) for line in done.stdout.splitlines() if line[:5] == "step ")
    assert shown - 30 <= found["steps"] <= shown + 1  # its last half second is not recorded
    (record,) = Store(tmp_path).records()
    assert (record.status, record.spec.workload.options["steps"]) == ("done", 90)
    epochs = Store(tmp_path).pandas("epochs")
    windows = epochs[epochs["phase"] == "steps"].sort_values("start_ns")
    assert windows["warmup"].tolist() == [True] + [False] * (len(windows) - 1)
    steady = windows[~windows["warmup"].astype(bool)]
    assert steady["steps"].sum() == found["steps_measured"]
    assert steady["samples"].sum() == found["samples_measured"]
    assert windows["epoch"].isna().all()
    step_s = steady["duration_s"].sum() / steady["steps"].sum()
    assert found["step_time_mean_s"] == pytest.approx(step_s)
    assert found["gpu_energy_per_step_j"] == pytest.approx(200 * step_s, rel=0.05)


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


def ranks_of(count, script, *options, starter=(SCRIPTS / "start_ranks.py",)):
    return (sys.executable, *starter, count, SCRIPTS / script, *options)


@pytest.mark.parametrize(
    ("choice", "parallelism"),
    [((), "ddp"), (("--fsdp", "1"), "fsdp"), (("--fsdp", "2"), "fsdp")],
    ids=["ddp", "fsdp1", "fsdp2"],
)
def test_what_ranks_wait_for_is_split_as_the_script_times_it_and_used_for_predictions(
    tmp_path, told_of, choice, parallelism
):
    """Bound what the hook times by what the script does; again if callbacks of DDP came late."""
    store, line = Store(tmp_path), ("--accumulate", "2", "--epochs", "8")
    for _ in range(1 if choice else 4):
        shutil.rmtree(tmp_path / "runs", ignore_errors=True)
        ranks = ranks_of(2, "ddp.py", *choice, *line, **({} if choice else {"starter": TORCHRUN}))
        found, done = told_of("--warmup-steps", "5", "--", *ranks)
        results = [json.loads(text) for text in re.findall(r"RESULT (.*)", done.stdout)]
        # Of 80 backward passes, DDP does not show the last; two are a step.
        waits_s, passes_s = (
            np.array([result[name] for result in results], float).reshape(2, 40, 2).sum(2)
            for name in ("gradient_waits_s", "passes_s")
        )
        runs, epochs = store.pandas("runs"), store.pandas("epochs")
        steady = epochs[(epochs["phase"] == "steps") & ~epochs["warmup"].astype(bool)]
        begins, counts = steady["from_step"].astype(int), steady["steps"].astype(int)
        steps = np.concatenate([np.arange(a, a + b) for a, b in zip(begins, counts, strict=True)])
        communication_s, rank_wait_s = steady[["communication_s", "rank_wait_s"]].sum()
        # The script's collectives are within what is timed of FSDP, and both within its passes.
        least_s, mean_s = np.nansum([waits_s.min(0)[steps], waits_s.mean(0)[steps]], axis=1)
        short = (0.85 * least_s > communication_s) | (0.85 * mean_s > communication_s + rank_wait_s)
        if not short:
            break
    assert not short
    assert communication_s <= passes_s.min(0)[steps].sum()
    assert communication_s + rank_wait_s <= passes_s.mean(0)[steps].sum()
    assert rank_wait_s > 0.8 * 0.01 * len(steps)  # twice, mean of two ranks
    assert (found["steps"], found["world_size"], found["parallelism"]) == (40, 2, parallelism)
    assert (found["samples_seen"], found["gradient_accumulation"]) == (1600, 2)
    assert (found["dp"], found["tp"], found["pp"], found["cp"]) == (2, 1, 1, 1)
    assert (found["sharding"], found["micro_batch"]) == ("fsdp" if choice else "none", 10)
    assert found["tokens_per_sample"] is None
    (job,) = jobs_of(run_metrics(runs, epochs), "command")
    (observation,) = job.observations
    share = communication_s / steady["duration_s"].sum()
    assert observation.communication_s == pytest.approx(share * observation.step_time_s)
    assert observation.waiting_s > 0


def test_a_program_that_ends_before_its_steps_keeps_its_exit_code(told_of):
    pattern = r"step (?P<step>\d+) seen (?P<samples>\d+)"
    limits = ("--steps", "200", "--warmup-steps", "2", "--progress", pattern)
    count = "for i in $(seq 8); do echo step $i seen $((i*4)); sleep 0.05; done; exit 5"
    found, done = told_of(*limits, "--", "sh", "-c", count)
    assert (done.returncode, found["exit_code"]) == (5, 5)
    assert (found["steps"], found["samples_seen"]) == (8, 32)
    assert [note for note in found["notes"] if "6 of 200 measured steps" in note]


@pytest.mark.parametrize(
    "options",
    [
        ("--steps", "5", "--seconds", "5"),
        ("--steps", "5", "--instrument", "none"),
        ("--progress", "step"),
    ],
)
def test_options_that_cannot_work_start_nothing(tmp_path, options, capsys):
    store, started = str(tmp_path / "s"), str(tmp_path / "started")
    assert main(["measure", "-o", store, *options, "--", "touch", started]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "started").exists()
    assert not (tmp_path / "s").exists()


#: A child writes its records to a disk that is full, and its parent makes no step.
DISTURBED = """
import os, resource, time, torch
child = os.fork()
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
if child:
    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))
for number in range(150):
    optimizer.step()
    time.sleep(0.01)
    print(number)
raise SystemExit(5)
"""


def test_what_disturbs_the_records_is_a_note_and_not_an_error_of_the_script(told_of):
    found, done = told_of("--", sys.executable, "-c", DISTURBED)
    assert (done.returncode, found["exit_code"]) == (5, 5)
    assert done.stdout.split() == [str(n) for n in range(150)]
    assert "Traceback" not in done.stderr
    for note in ("the records stop before", "but no step was recorded"):
        assert [text for text in found["notes"] if note in text]


def test_a_script_that_is_out_of_memory_is_stored_as_that_with_its_steps(tmp_path, told_of):
    trains = "p = torch.nn.Parameter(torch.ones(2)); p.grad = p + 1; o = torch.optim.SGD([p])"
    script = f"import torch; {trains}; o.step(); torch.empty(2**50)"
    assert told_of(sys.executable, "-c", script)[1].returncode == 1
    (run,) = Store(tmp_path).pandas("runs").to_dict("records")
    assert (run["status"], run["out_of_memory"], run["parameters"]) == ("out of memory", "host", 2)


LLAMA = Network(layers=2, hidden=32, heads=4, kv_heads=2, head_size=8, ffn=96, vocabulary=64,
                sequence=24)  # fmt: skip


@pytest.mark.parametrize(
    ("ranks", "script", "own", "samples", "parameters", "network"),
    [
        # fully_shard over two copies, each of which two ranks share by parallelize_module.
        (4, "sharded.py --tp 2 --accumulate 2 --recompute",
         {"tp": 2, "checkpointing": "full", "micro_batch": 2, "tokens_per_sample": 12.0,
          "parallelism": "tensor"}, 96, 2 * 16 * 64 + 64 + 16, None),
        (2, "fsdp_language.py", {}, 192, LLAMA.parameters, LLAMA),
        (2, "fsdp_language.py --trainer", {}, 192, LLAMA.parameters, LLAMA),
    ],
    ids=["torch", "accelerate", "transformers"],
)  # fmt: skip
def test_the_layout_of_an_unmodified_script_is_seen_and_its_samples_are_counted_once(
    tmp_path, told_of, ranks, script, own, samples, parameters, network
):
    found, done = told_of("--", *ranks_of(ranks, *script.split()))
    assert done.returncode == 0, done.stderr
    layout = {
        "tp": 1, "pp": 1, "cp": 1, "ep": 1, "dp": 2, "virtual_stages": 1, "sharding": "fsdp",
        "gradient_accumulation": 2, "micro_batch": 4, "tokens_per_sample": 24.0,
        "parallelism": "fsdp", "world_size": ranks, **own,
    }  # fmt: skip
    assert {name: found[name] for name in layout} == layout
    assert (found["steps"], found["samples_seen"]) == (12, samples)
    assert found["parameters"] == parameters
    (run,) = Store(tmp_path).pandas("runs").to_dict("records")
    assert {name: run[name] for name in layout} == layout
    versions = json.loads(run["software"])
    assert ("torch" in versions, "accelerate" in versions) == (True, network is not None)
    if network is not None:
        assert run["network"] == network.model_dump_json(exclude_defaults=True)
    assert run["peak_memory_bytes"] == found["peak_resident_bytes"] > 50e6
