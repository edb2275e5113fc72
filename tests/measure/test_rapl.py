"""Energy of processors and memory, from a tree like that of Linux's powercap."""

import os
from itertools import pairwise

import pyarrow as pa
import pytest

from powercap import RANGE_UJ, Powercap
from wattlaw.common.errors import NotAvailable
from wattlaw.measure.devices.meter import Target
from wattlaw.measure.devices.rapl import RaplMeter
from wattlaw.measure.telemetry.window_energy import energy_of_windows
from wattlaw.store.schema import SAMPLES, WINDOWS

TARGET = Target(os.getpid())


@pytest.fixture
def tree(tmp_path, monkeypatch) -> Powercap:
    monkeypatch.setenv("WATTLAW_SYSFS_ROOT", str(tmp_path / "sys"))
    return Powercap(tmp_path / "sys/class/powercap")


def energies(meter: RaplMeter) -> dict[str, float]:
    return {sample.device: sample.energy_j for sample in meter.read()}


def test_packages_and_their_memory_are_read_and_parts_of_a_package_are_not_counted_twice(tree):
    meter = RaplMeter.open(TARGET)
    assert [(device.id, device.kind) for device in meter.devices()] == [
        ("package-0", "cpu"),
        ("dram-0", "dram"),
        ("package-1", "cpu"),
        ("dram-1", "dram"),
    ]
    before = energies(meter)
    tree.advance(2.0)
    after = energies(meter)
    used_j = {device: after[device] - before[device] for device in after}
    assert used_j == pytest.approx({"package-0": 200, "dram-0": 40, "package-1": 240, "dram-1": 60})
    for sample in meter.read():
        assert sample.power_source == "measured"
        assert sample.power_w is None
    assert meter.problems() == []


def test_a_wrapped_counter_continues_from_its_last_value(tree):
    tree.set("intel-rapl:0", RANGE_UJ - 150_000_000)  # 150 J before it wraps
    meter = RaplMeter.open(TARGET)
    found = [energies(meter)["package-0"]]
    for _ in range(4):
        tree.advance(1.0)
        found.append(energies(meter)["package-0"])
    steps = [later - earlier for earlier, later in pairwise(found)]
    assert steps == [pytest.approx(100.0)] * 4


def test_every_wrap_is_counted(tree):
    meter = RaplMeter.open(TARGET)
    first = energies(meter)["dram-1"]
    for _ in range(3):
        tree.set("intel-rapl:1:1", RANGE_UJ - 1)
        energies(meter)
        tree.set("intel-rapl:1:1", 0)
        last = energies(meter)["dram-1"]
    assert last - first == pytest.approx(3 * RANGE_UJ * 1e-6)


def test_a_run_of_two_processors_adds_packages_and_memory_apart(tree):
    meter = RaplMeter.open(TARGET)
    rows = []
    for second in range(6):
        rows += [sample._replace(t_ns=second * 10**9)._asdict() for sample in meter.read()]
        tree.advance(1.0)
    samples = pa.Table.from_pylist([{"host": "a"} | row for row in rows], schema=SAMPLES)
    window = {"host": "a", "start_ns": 1_500_000_000, "duration_s": 3.0}
    table = energy_of_windows(pa.Table.from_pylist([window], schema=WINDOWS), samples)
    (row,) = table.to_pylist()
    assert row["cpu_energy_j"] == pytest.approx(3 * 220)
    assert row["dram_energy_j"] == pytest.approx(3 * 50)
    assert row["gpu_energy_j"] is None
    assert (row["energy_source"], row["energy_verdict"]) == ("counter", "ok")


def test_a_counter_that_disappears_has_a_reason_and_others_continue(tree):
    meter = RaplMeter.open(TARGET)
    tree.file("intel-rapl:0:1").unlink()
    for _ in range(2):
        assert set(energies(meter)) == {"package-0", "package-1", "dram-1"}
    (problem,) = meter.problems()
    assert problem.startswith("dram-0: no longer read: ")
    assert "No such file" in problem


def test_a_counter_without_a_number_is_not_read_again(tree):
    meter = RaplMeter.open(TARGET)
    tree.file("intel-rapl:1").write_text("")
    assert set(energies(meter)) == {"package-0", "dram-0", "dram-1"}
    assert meter.problems()[0].startswith("package-1: no longer read: ")


def test_a_machine_without_counters_says_so(tmp_path, monkeypatch):
    for root in (tmp_path, tmp_path / "missing"):
        monkeypatch.setenv("WATTLAW_SYSFS_ROOT", str(root))
        with pytest.raises(NotAvailable, match="no RAPL counters in"):
            RaplMeter.open(TARGET)


def test_a_counter_that_is_broken_from_the_start_is_failed_and_all_are_not_available(tree):
    tree.file("intel-rapl:0").write_text("broken\n")
    meter = RaplMeter.open(TARGET)
    failed = {device.id: device.facts.get("failed") for device in meter.devices()}
    file = tree.file("intel-rapl:0")
    assert failed.pop("package-0") == f"{file} cannot be read: 'broken' is not a number"
    assert set(energies(meter)) == {*failed} == {"dram-0", "package-1", "dram-1"}
    for zone in ("intel-rapl:0:1", "intel-rapl:1", "intel-rapl:1:1"):
        tree.file(zone).write_text("broken\n")
    with pytest.raises(NotAvailable, match="intel-rapl:0/energy_uj cannot be read"):
        RaplMeter.open(TARGET)


def test_a_decreasing_counter_that_did_not_wrap_is_not_used(tree):
    tree.set("intel-rapl:0", 200_000_000)
    meter = RaplMeter.open(TARGET)
    before = energies(meter)["package-0"]
    tree.set("intel-rapl:0", 199_999_000)
    assert energies(meter)["package-0"] < before  # seen as a fall, not as 262 kJ


@pytest.mark.parametrize("told", ["-5", "9" * 400, "1e9", "12 34", "\x00", "18446744073709551615"])
def test_an_invalid_counter_value_is_not_a_reading(tree, told):
    meter = RaplMeter.open(TARGET)
    tree.file("intel-rapl:1").write_text(told)
    assert set(energies(meter)) == {"package-0", "dram-0", "dram-1"}
    assert meter.problems()[0].startswith("package-1: no longer read: ")


@pytest.mark.parametrize("told", [None, "", "text", "0", "-1", "1000000", "9" * 30])
def test_a_wrap_of_a_zone_without_a_range_is_a_fault(tree, told):
    path = tree.root / "intel-rapl:0" / "max_energy_range_uj"
    path.unlink() if told is None else path.write_text(told)
    for zone in ("intel-rapl:0", "intel-rapl:1"):
        tree.set(zone, RANGE_UJ - 150_000_000)  # it wraps in the second second
    meter = RaplMeter.open(TARGET)
    assert next(device.id for device in meter.devices()) == "package-0"
    rows = []
    for second in range(8):
        rows += [sample._replace(t_ns=second * 10**9)._asdict() for sample in meter.read()]
        tree.advance(1.0)
    samples = pa.Table.from_pylist([{"host": "a"} | row for row in rows], schema=SAMPLES)
    edges = [{"host": "a", "start_ns": s * 10**9, "duration_s": 3.0} for s in (0, 4)]
    table = energy_of_windows(pa.Table.from_pylist(edges, schema=WINDOWS), samples)
    wrapping, after = table.to_pylist()
    assert wrapping["energy_verdict"] == "partial"  # package-0 is at fault, package-1 is not
    assert (after["energy_verdict"], after["cpu_energy_j"]) == ("ok", pytest.approx(3 * 220))


def test_a_package_without_a_readable_name_makes_the_sum_partial(tree):
    (tree.root / "intel-rapl:1" / "name").unlink()
    meter = RaplMeter.open(TARGET)
    failed = [device for device in meter.devices() if "failed" in device.facts]
    assert [device.id for device in failed] == ["intel-rapl:1"]
    rows = []
    for second in range(6):
        rows += [sample._replace(t_ns=second * 10**9)._asdict() for sample in meter.read()]
        tree.advance(1.0)
    samples = pa.Table.from_pylist([{"host": "a"} | row for row in rows], schema=SAMPLES)
    window = {"host": "a", "start_ns": 10**9, "duration_s": 3.0}
    facts = {("a", d.id): {**d.facts, "kind": d.kind} for d in meter.devices()}
    table = energy_of_windows(pa.Table.from_pylist([window], schema=WINDOWS), samples, facts)
    assert table["energy_verdict"].to_pylist() == ["partial"]


@pytest.mark.parametrize("jump_uj", [10**15, 5 * 10**9])
def test_a_constant_or_jumping_counter_is_never_ok(tree, jump_uj):
    meter = RaplMeter.open(TARGET)
    rows = []
    for second in range(8):
        if second == 4:
            tree.set("intel-rapl:0", jump_uj)
        rows += [sample._replace(t_ns=second * 10**9)._asdict() for sample in meter.read()]
        if second < 4:
            tree.advance(1.0)
    samples = pa.Table.from_pylist([{"host": "a"} | row for row in rows], schema=SAMPLES)
    edges = [{"host": "a", "start_ns": s * 10**9 + 1, "duration_s": 2.0} for s in (2, 3, 4)]
    table = energy_of_windows(pa.Table.from_pylist(edges, schema=WINDOWS), samples)
    assert "ok" not in table["energy_verdict"].to_pylist()
