"""The sampler process: real processes, real files."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import environment, wait_for
from wattlaw.devices.host import HostMeter
from wattlaw.devices.meter import Target
from wattlaw.errors import NotAvailable
from wattlaw.store.files import read_stream
from wattlaw.store.record import SamplerReport
from wattlaw.store.schema import SAMPLES
from wattlaw.telemetry import sampler

BUSY = "while True: pass"
IDLE = "import time; time.sleep(600)"
# A busy parent whose children come and go: each works for 0.2 s and is waited for.
FORKING = """
import subprocess, sys
while True:
    subprocess.run([sys.executable, "-c", "import time\\ne=time.process_time()+.2\\n"
                    "while time.process_time()<e: pass"])
"""


@pytest.fixture
def load():
    """Give a function that starts a process with some load; all are ended afterwards."""
    running = []

    def start(code: str) -> int:
        running.append(subprocess.Popen([sys.executable, "-c", code], start_new_session=True))
        return running[-1].pid

    yield start
    for process in running:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def sampling(folder: Path, pid: int, sample_hz: float = 20, watts: float | None = None, **options):
    line = sampler.command(folder, "here", Target(pid, watts), sample_hz)
    return subprocess.Popen(line, env=environment(), **options)


def rows(folder: Path, device: str = "host") -> list[dict[str, object]]:
    path = sampler.stream_path(folder, "here")
    found = read_stream(path, SAMPLES).to_pylist() if path.exists() else []
    return [row for row in found if row["device"] == device]


def test_a_busy_core_is_measured_as_one_core_and_estimated_at_the_given_watts(tmp_path, load):
    process = sampling(tmp_path, load(BUSY), watts=15.0)
    wait_for(lambda: len(rows(tmp_path)) > 40, "samples")
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    found = rows(tmp_path)
    span_s = (found[-1]["t_ns"] - found[0]["t_ns"]) * 1e-9
    energy = found[-1]["energy_j"] - found[0]["energy_j"]
    # A core that others use too is not wholly ours: more than one is wrong in any case.
    assert 0.3 * 15 * span_s < energy < 1.1 * 15 * span_s
    assert {row["power_source"] for row in found} == {"estimated"}
    assert all(row["mem_used_bytes"] > 1_000_000 for row in found)


def test_work_of_children_that_have_ended_is_not_forgotten(tmp_path, load):
    meter = HostMeter.open(Target(load(FORKING), assume_cpu_w=1.0))
    time.sleep(0.5)
    energies = []
    for _ in range(30):
        energies += [sample.energy_j for sample in meter.read()]
        time.sleep(0.1)
    assert energies == sorted(energies)
    assert energies[-1] > 0.9


def test_without_assumed_watts_there_is_no_power_and_no_energy(tmp_path, load):
    process = sampling(tmp_path, load(BUSY))
    wait_for(lambda: len(rows(tmp_path)) > 5, "samples")
    process.terminate()
    process.wait(10)
    for row in rows(tmp_path):
        assert (row["power_w"], row["energy_j"], row["power_source"]) == (None, None, None)


def test_a_process_that_is_gone_stops_having_rows_and_yields_no_zero(tmp_path, load):
    pid = load(BUSY)
    process = sampling(tmp_path, pid, watts=15.0)
    wait_for(lambda: len(rows(tmp_path)) > 5, "samples")
    os.kill(pid, signal.SIGKILL)
    time.sleep(1.5)
    count = len(rows(tmp_path))
    time.sleep(1.5)
    assert len(rows(tmp_path)) == count
    assert process.poll() is None
    process.terminate()
    assert process.wait(10) == 0


def test_it_writes_at_least_once_a_second_and_a_sigkill_costs_no_more_than_that(tmp_path, load):
    process = sampling(tmp_path, load(IDLE), sample_hz=50)
    wait_for(lambda: len(rows(tmp_path)) > 20, "samples")
    time.sleep(2.0)
    process.kill()
    killed_ns = time.time_ns()
    process.wait()
    assert killed_ns - rows(tmp_path)[-1]["t_ns"] < 2_000_000_000
    assert not sampler.report_path(tmp_path, "here").exists()


def test_it_keeps_its_schedule_without_drift(tmp_path, load):
    process = sampling(tmp_path, load(IDLE), sample_hz=20)
    wait_for(lambda: len(rows(tmp_path)) > 80, "samples")
    process.terminate()
    process.wait(10)
    times = [row["t_ns"] * 1e-9 for row in rows(tmp_path)][:-1]
    phase = [((t - times[10]) / 0.05 + 0.5) % 1 - 0.5 for t in times[10:]]
    late = sorted(abs(p) for p in phase)
    assert late[len(late) // 2] < 0.2  # the median tick is on the grid, four seconds later too


@pytest.mark.parametrize(("sample_hz", "at_least"), [(20, 6), (0.01, 1)])
def test_it_ends_itself_with_its_data_when_its_parent_dies(tmp_path, load, sample_hz, at_least):
    pid = load(IDLE)
    line = sampler.command(tmp_path, "here", Target(pid), sample_hz)
    parent = (
        "import os, subprocess, sys, time\n"
        f"line = {line!r}\n"
        "line[line.index('--parent-pid') + 1] = str(os.getpid())\n"
        "print(subprocess.Popen(line).pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True, env=environment()
    )
    int(owner.stdout.readline())
    wait_for(lambda: len(rows(tmp_path)) >= at_least, "samples")
    owner.kill()
    owner.communicate()
    wait_for(sampler.report_path(tmp_path, "here").exists, "the sampler's last words", 10)
    assert len(rows(tmp_path)) >= at_least


def test_a_device_that_breaks_is_given_up_with_the_reason_and_the_others_go_on(tmp_path, load):
    process = sampling(tmp_path, load(IDLE))
    wait_for(lambda: len(rows(tmp_path)) > 30, "samples")
    process.terminate()
    process.wait(10)
    report = SamplerReport.model_validate_json(sampler.report_path(tmp_path, "here").read_text())
    assert len(rows(tmp_path, "flaky-0")) == 3
    assert report.samples == len(rows(tmp_path)) + 3
    assert any("device lost" in problem for problem in report.problems)
    assert any("no such board; try plugging one in" in problem for problem in report.problems)
    assert 0 < report.cpu_s < report.duration_s


def test_a_root_process_that_never_was_is_said_to_be_missing():
    with pytest.raises(NotAvailable, match="not there"):
        HostMeter.open(Target(2**22 - 1))
