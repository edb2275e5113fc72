"""What every registered meter has to fulfil, each on hardware that can be lost."""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import get_args

import pytest

from powercap import RANGE_UJ, Powercap
from trees import AcpiMeters, IntelCards, PmCounters, grace_names
from wattlaw.common import registry
from wattlaw.common.errors import NotAvailable
from wattlaw.measure.devices.meter import GROUP, Meter, Sample, Target
from wattlaw.store.record import DeviceReport
from wattlaw.store.streams import Kind, PowerSource

S = 1_000_000_000
SHARES = ("sm_util", "mem_util")


@dataclass
class Bench:
    meter: type[Meter]
    target: Target
    count: int  # of devices
    go_on: Callable[[], object]  # some time passes
    lose: Callable[[], object]  # the hardware goes away
    hide: Callable[[], object]  # a machine that never had it

    def open(self) -> Meter:
        return self.meter.open(self.target)

    def samples(self, meter: Meter, readings: int = 4) -> list[Sample]:
        found = []
        for number in range(readings):
            self.go_on()
            found += meter.read(last=number == readings - 1)
        return found


def host(request: pytest.FixtureRequest, watts: float | None = None) -> Bench:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])

    def lose() -> None:
        process.kill()
        process.wait()

    request.addfinalizer(lose)
    target = Target(process.pid, assume_cpu_w=watts)
    return Bench(registry.load(GROUP, "host"), target, 1, lambda: time.sleep(0.05), lose, lose)


def nvidia(request: pytest.FixtureRequest, buffers: int) -> Bench:
    make = request.getfixturevalue("fake_gpus")
    patch = request.getfixturevalue("monkeypatch")
    boards = make(3, buffers=buffers, period_s=[0.0, 0.3, 0.0], refresh_ms=20)

    def lose() -> None:
        for board in boards:
            board.lost_ns = time.time_ns()

    def hide() -> None:
        patch.setenv("WATTLAW_FAKE_NVML", "")

    found = registry.load(GROUP, "nvidia")
    return Bench(found, Target(1), 3, lambda: time.sleep(0.05), lose, hide)


def packages(root: Path) -> Powercap:
    made = Powercap(root / "class/powercap")
    made.set("intel-rapl:0", RANGE_UJ - 250_000_000)  # it starts again at 0 on the way
    return made


def tree(
    request: pytest.FixtureRequest, name: str, count: int, make: Callable[[Path], object]
) -> Bench:
    """Give a tree of files, which disappears like hardware that is unplugged."""
    folder = request.getfixturevalue("tmp_path")
    patch = request.getfixturevalue("monkeypatch")
    root = folder / "sys"
    patch.setenv("WATTLAW_SYSFS_ROOT", str(root))
    for variable in ("SLURM_JOB_ID", "ZE_AFFINITY_MASK"):
        patch.delenv(variable, raising=False)
    advance = getattr(make(root), "advance", lambda _: None)

    def lose() -> None:
        shutil.rmtree(root)

    def hide() -> None:
        patch.setenv("WATTLAW_SYSFS_ROOT", str(folder / "nothing"))

    return Bench(registry.load(GROUP, name), Target(1), count, lambda: advance(1.0), lose, hide)


def amd(request: pytest.FixtureRequest, model: str, *, library: bool) -> Bench:
    machine = request.getfixturevalue("amd_machine")(model, 2, library=library)
    patch = request.getfixturevalue("monkeypatch")

    def go_on() -> None:
        time.sleep(0.02)
        machine[0].use(5.0)

    def lose() -> None:
        for gpu in machine.gpus:
            gpu.remove()

    def hide() -> None:
        patch.setenv("WATTLAW_SYSFS_ROOT", str(machine.root / "nothing"))

    return Bench(registry.load(GROUP, "amd"), Target(1), 2, go_on, lose, hide)


#: A new meter has a row, by the name of its entry point and what distinguishes its rows.
BENCHES: dict[str, Callable[[pytest.FixtureRequest], Bench]] = {
    "amd, by its library": lambda request: amd(request, "MI300X", library=True),
    "amd, by files": lambda request: amd(request, "MI250X", library=False),
    "host": host,
    "host, estimated": lambda request: host(request, 15.0),
    "nvidia, polled": lambda request: nvidia(request, 0),
    "nvidia, buffered": lambda request: nvidia(request, 1),
    "rapl": lambda request: tree(request, "rapl", 4, packages),
    "intel, i915": lambda request: tree(request, "intel", 3, lambda root: IntelCards(root, 3)),
    "intel, xe": lambda request: tree(
        request, "intel", 2, lambda root: IntelCards(root, 2, driver="xe")
    ),
    "grace": lambda request: tree(
        request, "grace", 4, lambda root: AcpiMeters(root, grace_names(2))
    ),
    "cray": lambda request: tree(request, "cray", 3, PmCounters),
    "node-power, acpi": lambda request: tree(
        request, "node-power", 1, lambda root: AcpiMeters(root, {"": 412.0}, interval_ms=1000)
    ),
}


@pytest.fixture(params=BENCHES)
def bench(request):
    return BENCHES[request.param](request)


def test_every_registered_meter_follows_the_contract():
    assert {name.split(",")[0] for name in BENCHES} == {*registry.names(GROUP)} - {"simulated"}


def test_devices_have_unique_names_and_facts_that_fit_into_a_record(bench):
    meter = bench.open()
    devices = meter.devices()
    ids = [device.id for device in devices]
    assert len(ids) == len({*ids}) == bench.count
    assert all(one and one.isprintable() for one in ids)
    assert {device.kind for device in devices} <= {*get_args(Kind)}
    for device in devices:
        report = DeviceReport(**asdict(device))
        assert DeviceReport.model_validate_json(report.model_dump_json()) == report
    meter.close()
    for period_s in (0.01, 5.0):
        other = bench.meter.open(replace(bench.target, period_s=period_s))
        assert other.period_s >= period_s
        other.close()


def test_samples_are_of_all_devices_in_order_of_time_with_a_source_and_valid_values(bench):
    before_ns = time.time_ns() - S  # a counter that refreshes seldom is read as it stands
    meter = bench.open()
    kinds = {device.id: device.kind for device in meter.devices()}
    found: list[Sample] = []
    for number in range(6):
        bench.go_on()
        found += meter.read(last=number == 5)
        now_ns = time.time_ns()
        assert all(before_ns <= sample.t_ns <= now_ns for sample in found)
    assert len(found) == len({*found})  # nothing is told twice
    assert {sample.device: sample.kind for sample in found} == kinds
    for sample in found:
        shares = [getattr(sample, column) for column in SHARES]
        assert all(share is None or 0 <= share <= 1 for share in shares)
        assert sample.power_w is None or sample.power_w >= 0
        if sample.power_w is not None or sample.energy_j is not None:
            assert sample.power_source in get_args(PowerSource)
    for column in ("energy_j", "power_throttle_s"):
        for device in kinds:
            values = [
                value
                for sample in sorted(found, key=lambda sample: sample.t_ns)
                if sample.device == device and (value := getattr(sample, column)) is not None
            ]
            assert values == sorted(values)
    assert meter.problems() == []
    meter.close()


def test_closing_twice_is_harmless_and_the_problems_are_still_known(bench):
    meter, other = bench.open(), bench.open()
    bench.samples(meter, 1)
    meter.close()
    meter.close()
    assert meter.problems() == []
    assert bench.samples(other, 2)  # another of its kind goes on
    other.close()


def test_reading_lost_hardware_gives_no_samples(bench):
    meter = bench.open()
    assert bench.samples(meter, 2)
    bench.lose()
    for last in (False, False, True):
        assert meter.read(last=last) == []
    if not isinstance(meter, registry.load(GROUP, "host")):
        assert len(meter.problems()) == bench.count  # a run's processes may end; hardware may not
    meter.close()


def test_missing_hardware_gives_a_one_line_error(bench):
    bench.hide()
    with pytest.raises(NotAvailable) as error:
        bench.open()
    assert len(str(error.value).splitlines()) == 1
    assert len(str(error.value)) > 10
