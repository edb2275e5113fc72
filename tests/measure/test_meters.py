"""What every registered meter has to fulfil, each on hardware that can be lost."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import get_args

import pytest

from powercap import RANGE_UJ, Powercap
from trees import AcpiMeters, IntelCards, Ipmi, PmCounters, grace_names
from wattlaw.common import registry
from wattlaw.common.errors import BadInput, NotAvailable
from wattlaw.measure.devices.meter import GROUP, Meter, Sample, Target
from wattlaw.store.record import DeviceReport
from wattlaw.store.streams import Kind, PowerSource

S = 1_000_000_000
SHARES = ("sm_util", "mem_util", "sm_occupancy", "tensor_util", "dram_util")


@dataclass
class Bench:
    """Hardware for one meter, and what may happen to it."""

    meter: type[Meter]
    target: Target
    count: int  # of devices
    go_on: Callable[[], object]  # some time passes
    lose: Callable[[], object] | None  # the hardware goes away; None: it cannot
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
    boards = make(3, buffers=buffers, gpm=1, period_s=[0.0, 0.3, 0.0], refresh_ms=20)

    def lose() -> None:
        for board in boards:
            board.lost_ns = time.time_ns()

    def hide() -> None:
        patch.setenv("WATTLAW_FAKE_NVML", "")

    found = registry.load(GROUP, "nvidia")
    return Bench(found, Target(1), 3, lambda: time.sleep(0.05), lose, hide)


def rapl(request: pytest.FixtureRequest) -> Bench:
    folder = request.getfixturevalue("tmp_path")
    patch = request.getfixturevalue("monkeypatch")
    tree = Powercap(folder / "sys/class/powercap")
    tree.set("intel-rapl:0", RANGE_UJ - 250_000_000)  # it starts again at 0 on the way
    patch.setenv("WATTLAW_SYSFS_ROOT", str(folder / "sys"))

    def lose() -> None:
        for file in tree.root.glob("*/energy_uj"):
            file.unlink()

    def hide() -> None:
        patch.setenv("WATTLAW_SYSFS_ROOT", str(folder / "nothing"))

    found = registry.load(GROUP, "rapl")
    return Bench(found, Target(1), 4, lambda: tree.advance(1.0), lose, hide)


def tree(request: pytest.FixtureRequest, name: str, kind: str) -> Bench:
    """Give a tree of files, which disappears like hardware that is unplugged."""
    folder = request.getfixturevalue("tmp_path")
    patch = request.getfixturevalue("monkeypatch")
    root = folder / "sys"
    patch.setenv("WATTLAW_SYSFS_ROOT", str(root))
    for variable in ("SLURM_JOB_ID", "ZE_AFFINITY_MASK"):
        patch.delenv(variable, raising=False)
    advance: Callable[[float], object] | None = None
    count = 1
    if kind == "intel":
        cards, count = IntelCards(root, 3), 3
        advance = cards.advance
    elif kind == "xe":
        cards, count = IntelCards(root, 2, driver="xe"), 2
        advance = cards.advance
    elif kind == "grace":
        AcpiMeters(root, grace_names(2))
        count = 4
    elif kind == "cray":
        advance, count = PmCounters(root).advance, 7
    elif kind == "acpi":
        AcpiMeters(root, {"": 412.0}, interval_ms=1000)
    elif kind == "dcmi":
        programs = Ipmi(root, folder / "bin").programs
        patch.setenv("PATH", os.pathsep.join([str(programs), os.environ["PATH"]]))

    def go_on() -> None:
        if advance is not None:
            advance(1.0)
        else:  # for readings in the background
            time.sleep(0.15)

    def lose() -> None:
        shutil.rmtree(root)
        if kind == "dcmi":
            programs.joinpath("mode").write_text("unsupported\n")

    def hide() -> None:
        patch.setenv("WATTLAW_SYSFS_ROOT", str(folder / "nothing"))

    return Bench(registry.load(GROUP, name), Target(1), count, go_on, lose, hide)


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


def simulated(request: pytest.FixtureRequest) -> Bench:
    path = request.getfixturevalue("tmp_path") / "devices.json"
    patch = request.getfixturevalue("monkeypatch")
    devices = [
        {"id": f"SIM-{kind}", "idle_w": 60, "max_w": 300, "load": {"kind": kind, "period_s": 0.2}}
        for kind in ("constant", "square")
    ]
    path.write_text(json.dumps(devices))
    patch.setenv("WATTLAW_SIMULATED", str(path))

    def hide() -> None:
        patch.delenv("WATTLAW_SIMULATED")

    found = registry.load(GROUP, "simulated")
    return Bench(found, Target(1), 2, lambda: time.sleep(0.05), None, hide)


BENCHES: dict[str, Callable[[pytest.FixtureRequest], Bench]] = {
    "amd, by its library": lambda request: amd(request, "MI300X", library=True),
    "amd, by files": lambda request: amd(request, "MI250X", library=False),
    "host": host,
    "host, estimated": lambda request: host(request, 15.0),
    "nvidia, polled": lambda request: nvidia(request, 0),
    "nvidia, buffered": lambda request: nvidia(request, 1),
    "rapl": rapl,
    "intel, i915": lambda request: tree(request, "intel", "intel"),
    "intel, xe": lambda request: tree(request, "intel", "xe"),
    "grace": lambda request: tree(request, "grace", "grace"),
    "cray": lambda request: tree(request, "cray", "cray"),
    "node-power, acpi": lambda request: tree(request, "node-power", "acpi"),
    "node-power, dcmi": lambda request: tree(request, "node-power", "dcmi"),
    "simulated": simulated,
}


@pytest.fixture(params=BENCHES)
def bench(request) -> Bench:
    """Give hardware for each registered meter."""
    return BENCHES[request.param](request)


def test_every_registered_meter_follows_the_contract():
    assert {name.split(",")[0] for name in BENCHES} == {*registry.names(GROUP)}


def test_devices_have_names_that_are_unique_and_printable_and_facts_that_fit_into_a_record(bench):
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


def test_every_sample_is_of_one_of_the_devices_and_all_devices_have_some(bench):
    meter = bench.open()
    kinds = {device.id: device.kind for device in meter.devices()}
    samples = bench.samples(meter)
    assert {sample.device for sample in samples} == {*kinds}
    assert all(sample.kind == kinds[sample.device] for sample in samples)
    assert {device.id for device in meter.devices()} == {*kinds}
    assert meter.problems() == []
    meter.close()


def test_times_lie_between_the_reading_before_and_the_end_of_the_reading(bench):
    before_ns = time.time_ns() - S  # a counter that refreshes seldom is read as it stands
    meter = bench.open()
    seen: set[tuple[object, ...]] = set()
    for _ in range(4):
        bench.go_on()
        samples = meter.read()
        now_ns = time.time_ns()
        assert all(before_ns <= sample.t_ns <= now_ns for sample in samples)
        assert not seen & {*samples}  # nothing is told twice
        seen |= {*samples}
    meter.close()


def test_counters_never_decrease_and_shares_are_shares(bench):
    meter = bench.open()
    counters = defaultdict(list)
    for sample in bench.samples(meter, 6):
        for column in ("energy_j", "power_throttle_s"):
            value = getattr(sample, column)
            if value is not None:
                counters[sample.device, column].append((sample.t_ns, value))
        for column in SHARES:
            value = getattr(sample, column)
            assert value is None or 0 <= value <= 1
        assert sample.power_w is None or sample.power_w >= 0
    for found in counters.values():
        values = [value for _, value in sorted(found)]
        assert values == sorted(values)
    meter.close()


def test_power_and_energy_say_where_they_come_from(bench):
    meter = bench.open()
    for sample in bench.samples(meter):
        if sample.power_w is not None or sample.energy_j is not None:
            assert sample.power_source in get_args(PowerSource)
    meter.close()


@pytest.mark.parametrize("period_s", [0.01, 0.1, 5.0])
def test_a_meter_is_not_read_more_often_than_requested(bench, period_s):
    target = bench.target
    meter = bench.meter.open(Target(target.root_pid, period_s, target.assume_cpu_w))
    assert meter.period_s >= period_s
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
    if bench.lose is None:
        pytest.skip("this hardware cannot be lost")
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
    try:
        meter = bench.open()
    except NotAvailable as error:
        assert len(str(error).splitlines()) == 1
        assert len(str(error)) > 10
    else:  # simulated devices are nothing that a machine should have
        assert meter.devices() == []
        assert meter.read() == []
        meter.close()


# Simulated devices: what they draw is worked by hand.


def simulation(tmp_path, monkeypatch, *devices: dict[str, object]) -> Meter:
    path = tmp_path / "devices.json"
    path.write_text(json.dumps(devices))
    monkeypatch.setenv("WATTLAW_SIMULATED", str(path))
    return registry.load(GROUP, "simulated").open(Target(1))


def test_simulated_devices_draw_what_their_load_says_and_say_that_they_are_simulated(
    tmp_path, monkeypatch
):
    common = {"idle_w": 100, "max_w": 300}
    load = {"kind": "square", "low": 0.25, "high": 0.75, "period_s": 0.2}
    meter = simulation(
        tmp_path,
        monkeypatch,
        {"id": "constant", **common},
        {"id": "square", **common, "load": load},
        {"id": "processor", **common, "load": {"high": 0.5}, "kind": "cpu"},
    )
    first = meter.read()
    time.sleep(0.4)
    second = meter.read()
    elapsed_s = (second[0].t_ns - first[0].t_ns) * 1e-9
    used_w = [(b.energy_j - a.energy_j) / elapsed_s for a, b in zip(first, second, strict=True)]
    assert used_w == [pytest.approx(watts, rel=0.02) for watts in (300, 200, 200)]
    assert {sample.power_source for sample in first} == {"simulated"}
    assert first[0].power_w == 300
    assert first[1].power_w in (150, 250)
    assert first[1].sm_util in (0.25, 0.75)
    assert (first[2].power_w, first[2].sm_util) == (200, None)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("[", "Invalid JSON"),
        ('[{"id": "a", "idle_w": 1}]', "0.max_w: Field required"),
        ('[{"id": "a", "idle_w": 1, "max_w": 2, "watts": 3}]', "0.watts: Extra inputs"),
        (
            '[{"id": "a", "idle_w": 1, "max_w": 2}, {"id": "a", "idle_w": 1, "max_w": 2}]',
            "same id",
        ),
        ('[{"id": "a", "idle_w": NaN, "max_w": 2}]', "0.idle_w"),
    ],
)
def test_a_file_of_simulated_devices_that_cannot_be_used_is_refused(
    tmp_path, monkeypatch, text, match
):
    path = tmp_path / "devices.json"
    path.write_text(text)
    monkeypatch.setenv("WATTLAW_SIMULATED", str(path))
    with pytest.raises(BadInput, match=match):
        registry.load(GROUP, "simulated").open(Target(1))


def test_a_file_of_simulated_devices_that_is_not_there_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("WATTLAW_SIMULATED", str(tmp_path / "missing.json"))
    with pytest.raises(BadInput, match="cannot be read"):
        registry.load(GROUP, "simulated").open(Target(1))
