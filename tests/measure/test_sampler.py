"""The sampler process: real processes, real files."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from conftest import SIMULATED_DEVICES, environment, wait_for
from fake_nvml import FakeGpus
from recording import HOST, machine, report_of
from wattlaw.measure.devices.host import HostMeter
from wattlaw.measure.devices.meter import Device, Meter, Sample, Target
from wattlaw.measure.telemetry import sampler
from wattlaw.measure.telemetry.sampler import MeterPoller
from wattlaw.store.live import read_live
from wattlaw.store.schema import SAMPLES

IDLE = "import time; time.sleep(600)"
# A busy parent whose children come and go: each works for 0.2 s and is waited for.
FORKING = """
import subprocess, sys
while True:
    subprocess.run([sys.executable, "-c", "import time\\ne=time.process_time()+.2\\n"
                    "while time.process_time()<e: pass"])
"""
SECOND = 1_000_000_000


@pytest.fixture
def load():
    running = []

    def start(code: str) -> int:
        running.append(subprocess.Popen([sys.executable, "-c", code], start_new_session=True))
        return running[-1].pid

    yield start
    for process in running:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    path = tmp_path_factory.mktemp("simulated") / "devices.json"
    path.write_text(json.dumps(["SIM-0"]))
    return {"WATTLAW_SIMULATED": str(path)}


@pytest.fixture
def sampling(tmp_path):
    """Give a function that starts a sampler; whatever is left of it at the end is killed."""
    running = []

    def start(pid: int, hz: float = 20, watts: float | None = None, **more: str):
        line = sampler.command(tmp_path, HOST, Target(pid, 1 / hz, watts))
        running.append(subprocess.Popen(line, env=environment() | more))
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.wait()


def ended(process: "subprocess.Popen[bytes]") -> int:
    process.terminate()
    return process.wait(20)


def used_s(pid: int) -> float:
    """Return the processor time of a process and of its children that have ended."""
    return sum(psutil.Process(pid).cpu_times()[:4])


def rows(folder: Path, device: str = "host") -> list[dict[str, object]]:
    path = sampler.stream_path(folder, HOST)
    found = read_live(path, SAMPLES, "here").to_pylist() if path.exists() else []
    return [row for row in found if row["device"] == device]


def test_a_busy_core_is_measured_as_one_core_and_estimated_at_the_given_watts(
    tmp_path, load, sampling
):
    pid = load("while True: pass")
    process = sampling(pid, watts=15.0)
    wait_for(lambda: rows(tmp_path), "samples")
    begun_s = used_s(pid)
    wait_for(lambda: len(rows(tmp_path)) > 20, "samples")
    later_s = used_s(pid)
    assert ended(process) == 0
    found = rows(tmp_path)
    energy = found[-1]["energy_j"] - found[0]["energy_j"]
    assert 15 * (later_s - begun_s) - 0.3 < energy < 15 * used_s(pid) + 0.3
    span_s = (found[-1]["t_ns"] - found[0]["t_ns"]) * 1e-9
    assert 0 < energy < 1.1 * 15 * span_s
    assert {row["power_source"] for row in found} == {"estimated"}
    assert all(row["mem_used_bytes"] > 1_000_000 for row in found)


def test_work_of_children_that_have_ended_is_not_forgotten(load):
    pid = load(FORKING)
    meter = HostMeter.open(Target(pid, assume_cpu_w=1.0))
    time.sleep(0.5)
    begun_s, energies = used_s(pid), []
    while used_s(pid) - begun_s < 0.8:  # of four children and more
        energies += [sample.energy_j for sample in meter.read()]
        time.sleep(0.1)
    ended_s = used_s(pid)
    energies += [sample.energy_j for sample in meter.read()]
    assert energies == sorted(energies)
    # A child that lives is known to the meter, and not yet to its parent's times.
    assert energies[-1] == pytest.approx(ended_s - begun_s, abs=0.3)


def test_a_sigkill_loses_at_most_a_second_of_samples(tmp_path, load, sampling, simulated):
    process = sampling(load(IDLE), hz=50, **simulated)
    wait_for(lambda: len(rows(tmp_path, "SIM-0")) > 20, "samples")
    time.sleep(1.5)
    process.kill()
    killed_ns = time.time_ns()
    process.wait()
    assert killed_ns - rows(tmp_path, "SIM-0")[-1]["t_ns"] < 1.5 * SECOND
    assert not sampler.report_path(tmp_path, HOST).exists()


@pytest.mark.parametrize(("hz", "at_least"), [(20, 6), (0.01, 1)])
def test_it_ends_itself_with_its_data_when_its_parent_dies(tmp_path, load, hz, at_least, simulated):
    line = sampler.command(tmp_path, HOST, Target(load(IDLE), 1 / hz))
    parent = f"import os, subprocess, time; line = {line!r}; line[-2] = str(os.getpid())\n"
    parent += "subprocess.Popen(line); time.sleep(600)"
    owner = subprocess.Popen([sys.executable, "-c", parent], env=environment() | simulated)
    wait_for(lambda: len(rows(tmp_path, "SIM-0")) >= at_least, "samples")
    owner.kill()
    owner.wait()
    wait_for(sampler.report_path(tmp_path, HOST).exists, "the sampler's last words", 10)
    assert len(rows(tmp_path, "SIM-0")) >= at_least


def test_a_broken_device_has_a_reason_and_others_continue(tmp_path, load, sampling, simulated):
    process = sampling(load(IDLE), **simulated)
    wait_for(lambda: len(rows(tmp_path, "SIM-0")) > 30, "samples")
    ended(process)
    report = report_of(tmp_path)
    assert len(rows(tmp_path, "flaky-0")) == 3
    assert report.samples == sum(len(rows(tmp_path, d)) for d in ("flaky-0", "SIM-0", "host"))
    assert report.problems == ("flaky no longer read: OSError: device lost",)
    assert report.unavailable["absent"] == "no such board; try plugging one in"
    assert {device.id for device in report.devices} == {"flaky-0", "SIM-0", "host"}
    assert 0 < report.cpu_s < report.duration_s


class Scripted(Meter):
    """A meter of a made-up clock, each of whose readings takes a given time."""

    def __init__(self, clock: list[float], takes_s: list[float]) -> None:
        self.period_s, self._clock, self._takes_s = 0.1, clock, iter(takes_s)

    def devices(self) -> list[Device]:
        return [Device("scripted", "node", "scripted")]

    def read(self, *, last: bool = False) -> list[Sample]:
        self._clock[0] += next(self._takes_s)
        return []


# A driver that hangs. The sampler's patience is 10 s; these have less.

IMPATIENT = """
from wattlaw.measure.telemetry import sampler
sampler.READ_TIMEOUT_S = 0.6
sampler.OPEN_TIMEOUT_S = 1.5
sampler.main()
"""


@pytest.fixture
def impatient(tmp_path, simulated):
    running = []

    def start(**changes: object) -> tuple["subprocess.Popen[bytes]", FakeGpus]:
        boards = FakeGpus.create(tmp_path / "boards", 2, **changes)
        line = sampler.command(tmp_path, HOST, Target(os.getpid(), 0.05))
        module = line.index("-m")
        line[module : module + 2] = ["-c", IMPATIENT]
        alone = {"PYTHONPATH": str(SIMULATED_DEVICES)}  # without the tests' other meters
        process = subprocess.Popen(line, env=machine(boards) | simulated | alone)
        running.append((process, boards))
        return process, boards

    yield start
    for process, boards in running:
        boards.clear_faults()
        process.kill()
        process.wait()


def board_rows(folder: Path, boards: FakeGpus) -> list[dict[str, object]]:
    return rows(folder, boards[0].uuid.decode())


def goes_on(folder: Path, since_ns: int) -> Callable[[], bool]:
    """Return whether the simulated device was read since a moment."""
    return lambda: any(row["t_ns"] > since_ns for row in rows(folder, "SIM-0"))


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_driver_call_that_hangs_does_not_stop_the_other_meters(tmp_path, impatient, comes_back):
    process, boards = impatient()
    wait_for(lambda: board_rows(tmp_path, boards), "samples of the board")
    boards.fault("nvmlDeviceGetFieldValues", hang=True)
    hung_ns = time.time_ns()
    wait_for(goes_on(tmp_path, hung_ns + 5 * SECOND // 4), "the other meters", 15)
    if comes_back:
        boards.clear_faults()
        wait_for(goes_on(tmp_path, time.time_ns()), "the other meters", 15)
    assert ended(process) == 0
    report = report_of(tmp_path)
    assert report.problems == ("nvidia no longer read: it does not answer",)
    assert {"host", "SIM-0", boards[1].uuid.decode()} < {one.id for one in report.devices}
    times = [row["t_ns"] for row in rows(tmp_path, "SIM-0")]
    longest_s = max(later - earlier for earlier, later in itertools.pairwise(times)) * 1e-9
    assert longest_s < 2.0
    assert board_rows(tmp_path, boards)[-1]["t_ns"] < hung_ns + SECOND // 2
    assert len(rows(tmp_path, "SIM-0")) == report.meters["simulated"].reads


def test_a_driver_that_hangs_at_the_end_does_not_keep_the_sampler_from_ending_with_its_data(
    tmp_path, impatient
):
    process, boards = impatient(buffers=1)  # is read once a second only
    wait_for(lambda: board_rows(tmp_path, boards), "samples of the board")
    boards.fault("nvmlDeviceGetSamples", hang=True)
    told_ns = time.time_ns()
    assert ended(process) == 0
    report = report_of(tmp_path)
    assert report.problems == ("nvidia no longer read: it does not answer",)
    assert rows(tmp_path, "SIM-0")[-1]["t_ns"] > told_ns - SECOND // 10
    assert len(rows(tmp_path, "SIM-0")) == report.meters["simulated"].reads


def test_a_meter_is_due_at_whole_periods_after_a_late_reading_too(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(sampler, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    poller = MeterPoller("scripted", lambda: Scripted(clock, [0.01, 0.02, 0.25, 0.01, 0.099]))
    poller.open()
    poller.begin(100.0)
    due_s = []
    for late_s in (0.0, 0.03, 0.0, 0.05, 0.0):
        clock[0] = poller.next_s + late_s
        poller.read(clock[0])
        due_s.append(round(poller.next_s - 100.0, 9))
    assert due_s == [0.1, 0.2, 0.5, 0.6, 0.8]
    assert poller.report().reads == 5
