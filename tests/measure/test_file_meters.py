"""Intel GPUs, Grace, pm_counters and node power on trees of files, with what goes wrong in them."""

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pyarrow as pa
import pytest

from conftest import setenv
from powercap import RANGE_UJ, Powercap
from trees import AcpiMeters, IntelCards, PmCounters, grace_names, put
from wattlaw.common.errors import NotAvailable
from wattlaw.measure.devices import cray
from wattlaw.measure.devices.acpi import GraceMeter, NodePowerMeter
from wattlaw.measure.devices.cray import CrayMeter
from wattlaw.measure.devices.file_meter import FileMeter, FileSource, shares_node
from wattlaw.measure.devices.intel import IntelMeter, select_gpus
from wattlaw.measure.devices.inventory import visible_gpu_ids
from wattlaw.measure.devices.meter import Device, Meter, Target
from wattlaw.measure.devices.rapl import RaplMeter
from wattlaw.measure.telemetry.window_energy import energy_of_windows
from wattlaw.store.schema import SAMPLES, WINDOWS

TARGET = Target(os.getpid())
CPUS = os.cpu_count()


@pytest.fixture
def root(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith(("SLURM_", "SBATCH_", "ZE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WATTLAW_SYSFS_ROOT", str(tmp_path / "sys"))
    return tmp_path / "sys"


def energies(meter: Meter) -> dict[str, float]:
    return {sample.device: sample.energy_j for sample in meter.read()}


def row_of(meter: Meter, advance: Callable[[int], object]) -> dict[str, object]:
    """Return the energy of the window from second 1 to 5; the devices advance after each second."""
    rows = []
    for second in range(6):
        rows += [sample._replace(t_ns=second * 10**9)._asdict() for sample in meter.read()]
        advance(second)
    samples = pa.Table.from_pylist([{"host": "a"} | row for row in rows], schema=SAMPLES)
    window = {"host": "a", "start_ns": 10**9, "duration_s": 4.0}
    facts = {
        ("a", device.id): {**device.facts, "kind": device.kind, "contains": device.contains}
        for device in meter.devices()
    }
    windows = pa.Table.from_pylist([window], schema=WINDOWS)
    (row,) = energy_of_windows(windows, samples, facts).to_pylist()
    return row


@pytest.mark.parametrize("code", [errno.EIO, errno.EAGAIN, errno.ENODEV, errno.ENOENT])
def test_a_moment_without_an_answer_passes_and_lost_hardware_is_given_up(tmp_path, code):
    answers = iter([6, 7, OSError(code, os.strerror(code)), 8, 9])

    def parse(_: str) -> int:
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return answer

    device = Device("a", "gpu", "a")
    meter = FileMeter(
        [FileSource(device, put(tmp_path / "energy", 0), scale=1.0, parse=parse)], 0.1, "permit"
    )
    read = [energies(meter).get("a") for _ in range(3)]
    if code in (errno.EIO, errno.EAGAIN):
        assert (read, meter.problems()) == ([7, None, 8], [])
    else:
        assert read == [7, None, None]
        assert meter.problems() == [f"a: no longer read: [Errno {code}] {os.strerror(code)}"]


# Root may read everything, so it becomes another user; what leads to the tree may be root's only.
CODE = """
import os, sys
from wattlaw.common import registry
from wattlaw.measure.devices.meter import GROUP, Target
from wattlaw.common.errors import NotPermitted
os.chdir(os.environ["WATTLAW_SYSFS_ROOT"])
os.environ["WATTLAW_SYSFS_ROOT"] = "."
meter = registry.load(GROUP, sys.argv[1])
if os.geteuid() == 0:
    os.setgid(65534), os.setuid(65534)
try:
    devices = meter.open(Target(1)).devices()
    print("; ".join(str(device.facts.get("failed", "read")) for device in devices))
except NotPermitted as error:
    print(f"not permitted: {error}")
"""


@pytest.mark.parametrize(
    ("name", "make", "pattern", "permit"),
    [
        ("rapl", lambda root: Powercap(root / "class/powercap"),
         "class/powercap/intel-rapl:*/energy_uj",
         "chmod o+r class/powercap/intel-rapl:*/energy_uj"),
        ("node-power", lambda root: AcpiMeters(root, {"": 412.0}, old=False),
         "class/hwmon/*/power1_average", "chmod o+r class/hwmon/hwmon*/power1_average"),
        ("cray", lambda root: PmCounters(root, 0), "cray/pm_counters/*energy",
         "chmod -R o+rX cray/pm_counters"),
        ("cray", lambda root: PmCounters(root, 0), "cray/pm_counters/freshness",
         "chmod -R o+rX cray/pm_counters"),
    ],
)  # fmt: skip
def test_files_that_are_roots_only_say_how_an_administrator_changes_that(
    root, name, make, pattern, permit
):
    make(root)
    for path in (root, *root.glob("**/*")):
        path.chmod(0o755)

    def opened() -> str:
        line = [sys.executable, "-c", CODE, name]
        return subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()

    assert {*opened().split("; ")} == {"read"}
    for path in root.glob(pattern):
        path.chmod(0)
    text = opened()
    assert text.startswith("not permitted: ")
    assert f"can be read by root only; an administrator can allow it with: {permit}" in text
    subprocess.run(["/bin/sh", "-c", permit], cwd=root, check=True)
    assert {*opened().split("; ")} == {"read"}


@pytest.fixture
def packages(root):
    return Powercap(root / "class/powercap")


def test_packages_and_their_memory_are_read_and_parts_of_a_package_are_not_counted_twice(packages):
    meter = RaplMeter.open(TARGET)
    assert [(device.id, device.kind) for device in meter.devices()] == [
        ("package-0", "cpu"), ("dram-0", "dram"), ("package-1", "cpu"), ("dram-1", "dram"),
    ]  # fmt: skip
    before = energies(meter)
    packages.advance(2.0)
    after = energies(meter)
    used_j = {device: after[device] - before[device] for device in after}
    assert used_j == pytest.approx({"package-0": 200, "dram-0": 40, "package-1": 240, "dram-1": 60})
    assert {(s.power_source, s.power_w) for s in meter.read()} == {("measured", None)}
    row = row_of(meter, lambda _: packages.advance(1.0))
    assert (row["cpu_energy_j"], row["dram_energy_j"]) == pytest.approx((4 * 220, 4 * 50))
    assert (row["energy_source"], row["energy_verdict"]) == ("counter", "ok")


def test_every_wrap_is_counted_and_another_fall_is_none(packages):
    packages.set("intel-rapl:0", 200_000_000)
    meter = RaplMeter.open(TARGET)
    first = energies(meter)
    for _ in range(3):
        packages.set("intel-rapl:1:1", RANGE_UJ - 1)
        energies(meter)
        packages.set("intel-rapl:1:1", 0)
        last = energies(meter)
    assert last["dram-1"] - first["dram-1"] == pytest.approx(3 * RANGE_UJ * 1e-6)
    packages.set("intel-rapl:0", 199_999_000)
    assert energies(meter)["package-0"] < first["package-0"]  # seen as a fall, not as 262 kJ


def test_a_counter_that_is_broken_from_the_start_is_failed_and_all_are_not_available(packages):
    packages.file("intel-rapl:0").write_text("broken\n")
    meter = RaplMeter.open(TARGET)
    failed = {device.id: device.facts.get("failed") for device in meter.devices()}
    file = packages.file("intel-rapl:0")
    assert failed.pop("package-0") == f"{file} cannot be read: 'broken' is not a number"
    assert {*energies(meter)} == {*failed} == {"dram-0", "package-1", "dram-1"}
    for zone in ("intel-rapl:0:1", "intel-rapl:1", "intel-rapl:1:1"):
        packages.file(zone).write_text("broken\n")
    with pytest.raises(NotAvailable, match="intel-rapl:0/energy_uj cannot be read"):
        RaplMeter.open(TARGET)


@pytest.mark.parametrize("told", ["", "-5", "9" * 400, "1e9", "12 34", "\x00", str(2**64 - 1)])
def test_an_invalid_counter_value_is_not_a_reading(packages, told):
    meter = RaplMeter.open(TARGET)
    packages.file("intel-rapl:1").write_text(told)
    assert {*energies(meter)} == {"package-0", "dram-0", "dram-1"}
    assert meter.problems()[0].startswith("package-1: no longer read: ")


@pytest.mark.parametrize("driver", ["i915", "xe"])
def test_a_card_counts_once_and_its_tiles_are_parts_of_it(root, driver):
    cards = IntelCards(root, 2, driver=driver)
    meter = IntelMeter.open(TARGET)
    first, second = meter.devices()
    assert (first.id, second.id) == ("intel-0000:18:00.0", "intel-0000:19:00.0")
    assert (first.kind, first.name) == ("gpu", "Intel Data Center GPU Max 1550")
    facts = {"pci_id": "8086:0bd5", "driver": driver, "tiles": 2, "power_limit_w": 600}
    assert facts.items() <= first.facts.items()
    assert ("package" in first.facts["scope"]) == (driver == "xe")
    before = energies(meter)
    cards.advance(2.0)
    after = {sample.device: sample for sample in meter.read(last=True)}
    for device in (first.id, second.id):
        assert after[device].energy_j - before[device] == pytest.approx(800)


@pytest.mark.parametrize(
    ("mask", "hierarchy", "expected"),
    [
        (None, None, {0: False, 1: False, 2: False}),
        ("", None, {0: False, 1: False, 2: False}),
        ("0", None, {0: True}),
        ("0,1", "FLAT", {0: False}),
        ("4,5,2", "COMBINED", {1: True, 2: False}),
        ("2,0", "COMPOSITE", {0: False, 2: False}),
        ("1.0", "COMPOSITE", {1: True}),
        ("1.0,1.1", "composite", {1: False}),
        ("0.1", None, {0: True}),
        ("9,x,1.9,-1,٣,0." + "9" * 5000, "COMPOSITE", {}),
    ],
)
def test_a_mask_selects_cards_and_a_part_of_a_card_is_shared(mask, hierarchy, expected):
    environ = {"ZE_AFFINITY_MASK": mask, "ZE_FLAT_DEVICE_HIERARCHY": hierarchy}
    assert select_gpus([2, 2, 2], {k: v for k, v in environ.items() if v is not None}) == expected


def test_a_slurm_job_without_gpus_counts_no_card(root, monkeypatch):
    IntelCards(root, 2, limit_w=0)
    monkeypatch.delenv("ZE_AFFINITY_MASK", raising=False)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    with pytest.raises(NotAvailable, match="this Slurm job has no GPU"):
        IntelMeter.open(TARGET)
    assert visible_gpu_ids() == []
    monkeypatch.setenv("SLURM_JOB_GPUS", "0-1")
    devices = IntelMeter.open(TARGET).devices()
    assert visible_gpu_ids() == [device.id for device in devices]
    assert [device.facts["power_limit_w"] for device in devices] == [None, None]  # none in force


@pytest.mark.parametrize("old", [True, False])
def test_modules_and_processors_count_by_their_outermost_channels(root, old):
    AcpiMeters(root, {**grace_names(2), "TotalGPU Power Socket 1": 400.0}, old=old)
    meter = GraceMeter.open(TARGET)
    devices = {device.id: device for device in meter.devices()}
    assert [*devices] == ["module-0", "grace-0", "module-1", "grace-1"]
    module, grace = devices["module-1"], devices["grace-1"]
    assert (module.kind, module.contains) == ("module", ("gpu", "cpu", "dram"))
    assert (grace.kind, grace.contains) == ("cpu", ("dram",))
    assert grace.facts["parts"] == "CPU, SysIO, TotalGPU"
    assert (grace.facts["resolution_s"], module.facts["is_shared"]) == (0.05, False)
    assert {s.device: s.power_w for s in meter.read()} == {
        "module-0": 640, "grace-0": 180, "module-1": 640, "grace-1": 180
    }  # fmt: skip
    with pytest.raises(NotAvailable, match="no ACPI power meter"):
        NodePowerMeter.open(TARGET)  # a channel is not the node


def test_a_node_and_its_parts_are_counted_with_their_scopes(root, monkeypatch):
    counters = PmCounters(root)
    put(counters.folder / "cpu0_energy", "100 J")  # a part
    meter = CrayMeter.open(TARGET)
    devices = {device.id: device for device in meter.devices()}
    assert sorted(devices) == ["cray-cpu", "cray-memory", "cray-node"]
    node = devices["cray-node"]
    assert (node.kind, node.contains) == ("node", ("module", "gpu", "cpu", "dram"))
    assert node.facts["counter_refresh_s"] == 0.1
    kinds = {id_: device.kind for id_, device in devices.items()}
    assert (kinds["cray-cpu"], kinds["cray-memory"]) == ("cpu", "dram")
    assert all(d.facts["complements"] for d in devices.values() if d is not node)
    before = energies(meter)
    counters.advance(2.0)
    after = energies(meter)
    assert {id_: after[id_] - before[id_] for id_ in after} == {
        "cray-node": 4000, "cray-cpu": 400, "cray-memory": 160
    }  # fmt: skip
    with pytest.raises(NotAvailable, match="read from pm_counters"):
        NodePowerMeter.open(TARGET)


def update_while_read(counters: PmCounters, times: int) -> threading.Thread:
    """Update the counters so many times, each time while ``memory_energy`` is being read.

    A reader blocks in a named pipe, so that an update surely falls between two of its files.
    """
    path = counters.folder / "memory_energy"

    def block() -> None:
        os.mkfifo(path.with_suffix(".new"))
        path.with_suffix(".new").rename(path)

    def write() -> None:
        for update in range(1, times + 1):
            with path.open("w") as pipe:
                old = counters.joules["memory_"]
                path.unlink()
                counters.advance(1.0)
                if update < times:
                    block()
                pipe.write(f"{old} J\n")

    block()
    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    return thread


def test_files_that_are_updated_while_they_are_read_are_read_again(root):
    counters = PmCounters(root, 0)
    meter = CrayMeter.open(TARGET)
    before = dict(counters.joules)
    writer = update_while_read(counters, 2)
    read = energies(meter)
    writer.join(10)
    assert counters.joules[""] - before[""] == 4000
    assert read == {f"cray-{part[:-1] or 'node'}": j for part, j in counters.joules.items()}


def test_counters_are_not_read_twice_and_counters_that_stop_are_noted(root, monkeypatch):
    counters = PmCounters(root, 0)
    meter = CrayMeter.open(TARGET)
    assert len(meter.read()) == 3
    assert meter.read() == []
    assert meter.problems() == []
    monkeypatch.setattr(cray, "_STALE_S", 0.05)
    time.sleep(0.06)
    assert meter.read() == []
    (problem,) = meter.problems()
    assert "not updated for" in problem
    counters.advance(1.0)
    assert len(meter.read()) == 3
    assert meter.problems() == []


@pytest.mark.parametrize(
    ("is_shared", "verdict", "scope"), [(False, "ok", "node"), (True, "partial", "cpu+dram")]
)
def test_all_energy_of_a_cray_node_is_that_of_the_node_unless_it_is_shared(
    root, monkeypatch, is_shared, verdict, scope
):
    counters = PmCounters(root)
    if is_shared:
        monkeypatch.setenv("SLURM_JOB_ID", "7")
        monkeypatch.setenv("SLURM_CPUS_ON_NODE", "0")
    row = row_of(CrayMeter.open(TARGET), lambda _: counters.advance(1.0))
    assert (row["node_energy_verdict"], row["energy_scope"]) == (verdict, scope)
    if not is_shared:
        assert row["node_energy_j"] == 8000
        assert (row["cpu_energy_j"], row["dram_energy_j"]) == (800, 320)


def test_a_window_across_a_restart_of_the_counters_has_a_fault(root):
    counters = PmCounters(root, 0)
    meter = CrayMeter.open(TARGET)

    def advance(second: int) -> None:
        if second == 2:
            counters.joules = dict.fromkeys(counters.joules, 0)
        counters.advance(1.0)

    row = row_of(meter, advance)
    assert row["energy_verdict"] == row["node_energy_verdict"] == "unavailable"
    assert row["energy_scope"] is None
    assert "cray-cpu: the counter went back" in row["energy_reason"]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, False),
        ({"SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": str(CPUS)}, False),
        ({"SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "0"}, True),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_CPUS_PER_NODE": f"{CPUS}(x2),{CPUS + 3}"}, False),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_CPUS_PER_NODE": f"0,{CPUS}(x99)"}, True),
        ({"SLURM_JOB_ID": "7"}, True),
        ({"SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "x"}, True),
        ({"SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "0", "SBATCH_EXCLUSIVE": ""}, False),
    ],
)
def test_a_job_with_a_part_of_the_processors_shares_its_node(root, monkeypatch, environ, expected):
    assert shares_node(environ) == expected
    PmCounters(root, 0)
    AcpiMeters(root, grace_names(1))
    Powercap(root / "class/powercap")
    setenv(monkeypatch, environ)
    devices = [
        d for meter in (CrayMeter, GraceMeter, RaplMeter) for d in meter.open(TARGET).devices()
    ]
    assert {device.kind for device in devices} == {"node", "module", "cpu", "dram"}
    assert {device.facts["is_shared"] for device in devices} == {expected}


@pytest.mark.parametrize("old", [True, False])
def test_an_unnamed_power_meter_is_the_node(root, old):
    meters = AcpiMeters(root, {"": 412.0}, interval_ms=1000, old=old)
    meter = NodePowerMeter.open(TARGET)
    (device,) = meter.devices()
    assert (device.id, device.kind) == ("node-acpi", "node")
    assert device.contains == ("module", "gpu", "cpu", "dram")
    assert (device.facts["power"], device.facts["resolution_s"]) == ("acpi", 1.0)
    assert [sample.power_w for sample in meter.read()] == [412]
    put(meters.files[""], 500_000_000)
    assert [sample.power_w for sample in meter.read()] == [500]


def test_two_unnamed_power_meters_and_one_of_a_battery_are_not_the_node(root):
    AcpiMeters(root, {"": 412.0, "rear": 300.0})
    with pytest.raises(NotAvailable, match="no ACPI power meter"):
        NodePowerMeter.open(TARGET)
    for path in root.glob("devices/*/*/*/power1_is_battery"):
        put(path, 1)
    with pytest.raises(NotAvailable, match="no ACPI power meter"):
        NodePowerMeter.open(TARGET)
