"""Scopes of energy: what a total counts, from the devices of a host to a run and its report."""

import math
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from made_tables import frames, run_row, window_row
from wattlaw.analysis.metrics.metrics import run_metrics
from wattlaw.common.scopes import PARTS
from wattlaw.measure.telemetry.window_energy import energy_of_windows
from wattlaw.running.summary import WindowEnergy
from wattlaw.store.schema import SAMPLES, WINDOWS

S = 1_000_000_000
#: Watts of the parts of a machine; a module and a node draw what is in them.
WATTS = {"gpu": 400.0, "cpu": 200.0, "dram": 50.0}
MODULE = {"contains": ("gpu", "cpu", "dram")}
NODE = {"contains": ("module", "gpu", "cpu", "dram")}


def in_kind(kind: str, contains: tuple[str, ...] = ()) -> float:
    return sum(WATTS[part] for part in {*contains, kind} & {*WATTS})


def row_of(*devices: dict[str, Any], seconds: float = 4.0) -> dict[str, Any]:
    """Return the energy of one window of a host; each device has a kind, watts and facts."""
    rows, facts = [], {}
    for place, device in enumerate(devices):
        name = f"{device['kind']}-{place}"
        facts["a", name] = {"kind": device["kind"], **device.get("facts", {})}
        rows += [
            {"host": "a", "device": name, "kind": device["kind"], "t_ns": tick * S // 10,
             "power_w": device["w"], "energy_j": device["w"] * tick / 10,
             "power_source": device.get("source", "measured")}
            for tick in range(*device.get("ticks", (0, 101)))
        ]  # fmt: skip
    window = {"host": "a", "start_ns": 3 * S, "duration_s": seconds}
    windows = pa.Table.from_pylist([window], schema=WINDOWS)
    samples = pa.Table.from_pylist(rows, schema=SAMPLES)
    (row,) = energy_of_windows(windows, samples, facts).to_pylist()
    return dict(row)


def device(kind: str, w: float, **more: Any) -> dict[str, Any]:
    own = {name: more.pop(name) for name in ("source", "ticks") if name in more}
    return {"kind": kind, "w": w, "facts": more, **own}


GPU, CPU, DRAM = (device(part, WATTS[part]) for part in PARTS)
BOARD, WHOLE = device("module", 700.0, **MODULE), device("node", 900.0, **NODE)


@pytest.mark.parametrize(
    ("members", "scope", "total_j"),
    [
        ([GPU, CPU, DRAM], "gpu+cpu+dram", 2600),
        ([GPU, CPU, DRAM, BOARD], "module", 2800),
        ([GPU, CPU, DRAM, device("module", 600.0, contains=("gpu", "cpu"))], "module+dram", 2600),
        ([GPU, device("cpu", 250.0, contains=("dram",)), DRAM], "gpu+cpu", 2600),
        ([GPU, CPU, DRAM, BOARD, WHOLE], "node", 3600),
        ([WHOLE], "node", 3600),
        # A meter that only complements others is not the total, unless there is no other.
        ([GPU, device("node", 900.0, complements=True, **NODE)], "gpu", 1600),
        ([device("node", 900.0, complements=True, **NODE)], "node", 3600),
        ([device("cpu", 90.0, source="estimated"), device("node", 900.0, complements=True)],
         "node", 3600),
        # Of two meters of the node, one counts; of cpu meters, those that do not complement.
        ([WHOLE, device("node", 950.0, complements=True)], "node", 3600),
        ([device("node", 950.0, complements=True, resolution_s=2.0),
          device("node", 900.0, complements=True, resolution_s=1.0)], "node", 3600),
        ([CPU, CPU, device("cpu", 410.0, complements=True)], "cpu", 1600),
        ([device("cpu", 410.0, complements=True), device("cpu", 9.0, source="estimated")],
         "cpu", 1640),
        # An estimate is no total of what was measured.
        ([GPU, device("module", 700.0, source="estimated", **MODULE)], "gpu", 1600),
        ([GPU, device("node", 900.0, source="estimated", **NODE)], "gpu", 1600),
        # The energy of a chassis is that of other nodes, too.
        ([GPU, device("chassis", 9000.0, contains=("node",))], "gpu", 1600),
        ([GPU, device("node", 900.0, is_shared=True, **NODE)], "gpu", 1600),
        ([GPU, device("node", 900.0, ticks=(0, 40), **NODE)], "gpu", 1600),
        ([device("chassis", 9000.0)], None, 0),
    ],
)  # fmt: skip
def test_the_total_of_a_window_is_that_of_the_outermost_measured_scope(members, scope, total_j):
    row = row_of(*members)
    energy = WindowEnergy.of([row])
    assert row["energy_scope"] == energy.scope == scope
    assert energy.total_j == (None if scope is None else pytest.approx(total_j))
    if scope is not None:
        assert (energy.source(scope), energy.verdict(scope)) == ("counter", "ok")


def test_a_fault_of_a_part_is_not_one_of_its_module_nor_the_reverse():
    lost_gpu = device("gpu", 400.0, ticks=(0, 50))
    row = row_of(lost_gpu, CPU, BOARD)
    assert (row["energy_scope"], row["energy_verdict"]) == ("module", "ok")
    assert (row["module_energy_j"], row["gpu_energy_j"]) == (pytest.approx(2800), None)
    assert row["cpu_energy_j"] == pytest.approx(800)
    assert "gpu-0: " in row["energy_reason"]
    row = row_of(GPU, CPU, device("module", 700.0, ticks=(0, 50), **MODULE))
    assert (row["energy_scope"], row["energy_verdict"]) == ("gpu+cpu", "ok")
    assert (row["module_energy_j"], WindowEnergy.of([row]).total_j) == (None, pytest.approx(2400))
    assert "module-2: " in row["energy_reason"]
    row = row_of(GPU, CPU, BOARD, device("module", 700.0, ticks=(0, 50), **MODULE))
    assert (row["energy_scope"], row["energy_verdict"]) == ("gpu+cpu", "ok")  # one of two is lost
    row = row_of(device("module", 700.0, ticks=(0, 50), **MODULE))
    assert (row["energy_scope"], row["energy_verdict"]) == ("module", "partial")
    row = row_of(lost_gpu, CPU, device("module", 700.0, ticks=(0, 50), **MODULE))
    assert (row["energy_scope"], row["energy_verdict"]) == ("gpu+cpu", "partial")


@pytest.mark.parametrize(
    ("members", "scope", "verdict"),
    [
        ([GPU, device("cpu", 200.0, is_shared=True), DRAM], "gpu+dram", "ok"),
        ([device("cpu", 200.0, is_shared=True), device("dram", 50.0, is_shared=True)],
         "cpu+dram", "partial"),
        ([GPU, device("module", 700.0, is_shared=True, **MODULE)], "gpu", "ok"),
        ([device("module", 700.0, is_shared=True, **MODULE)], "module", "partial"),
        ([device("gpu", 400.0, is_shared=True)], "gpu", "suspect"),
        ([GPU, device("cpu", 90.0, source="estimated")], "gpu+cpu", "ok"),
    ],
)  # fmt: skip
def test_processors_of_a_shared_node_are_partial_and_leave_the_gpus_ok(members, scope, verdict):
    row = row_of(*members)
    assert (row["energy_scope"], row["energy_verdict"]) == (scope, verdict)
    shared = [one["kind"] for one in members if one["facts"].get("is_shared")]
    reason = row["energy_reason"] or ""
    assert all(f"the {kind} is shared: its energy includes" in reason for kind in shared)
    if verdict == "ok":
        assert [row[f"{kind}_energy_j"] for kind in shared] == [None] * len(shared)


def test_a_complement_takes_over_where_the_others_have_no_energy():
    row = row_of(device("cpu", 200.0, ticks=(0, 20)), device("cpu", 410.0, complements=True))
    assert (row["cpu_energy_j"], row["energy_verdict"]) == (pytest.approx(1640), "ok")


@pytest.mark.parametrize(
    ("kind", "facts", "verdict", "node_verdict"),
    [
        ("cpu", {}, "partial", None),
        ("gpu", {"complements": True}, "ok", None),
        ("node", {}, "ok", "unavailable"),
        ("chassis", {}, "ok", None),
    ],
)
def test_a_device_that_cannot_be_read_spoils_its_own_scope_only(kind, facts, verdict, node_verdict):
    row = row_of(GPU, device(kind, 0.0, failed="permission denied", ticks=(0, 0), **facts))
    assert (row["energy_verdict"], row["node_energy_verdict"]) == (verdict, node_verdict)
    assert row["energy_scope"] == "gpu"


PART = st.builds(
    lambda kind, copies, complements: [device(kind, WATTS[kind] / copies)] * copies
    + [device(kind, WATTS[kind], complements=True)] * complements,
    st.sampled_from(PARTS), st.integers(1, 3), st.integers(0, 1),
)  # fmt: skip
OUTER = st.sets(st.sampled_from(PARTS)).map(tuple)


@settings(deadline=None, max_examples=60)
@given(
    parts=st.lists(PART, unique_by=lambda devices: devices[0]["kind"], max_size=3),
    cpu=st.sets(st.just("dram")).map(tuple),
    module=st.none() | OUTER,
    nodes=st.lists(st.booleans(), max_size=2),
    order=st.randoms(use_true_random=False),
)
def test_no_total_counts_a_part_twice_or_exceeds_the_node(parts, cpu, module, nodes, order):
    devices = [dict(one) for devices in parts for one in devices]
    for one in devices:  # a processor whose energy includes that of its memory
        if one["kind"] == "cpu" and cpu:
            share = one["w"] / WATTS["cpu"]
            one |= {"w": share * in_kind("cpu", cpu), "facts": {**one["facts"], "contains": cpu}}
    if module:  # a meter includes all or nothing of what another one includes
        module = (*{*module, "cpu", "dram"},) if cpu and {*module} & {"cpu", "dram"} else module
        devices.append(device("module", in_kind("module", module), contains=module))
    everything = in_kind("node", PARTS)
    devices += [device("node", everything, complements=slow, **NODE) for slow in nodes]
    order.shuffle(devices)
    row = row_of(*devices) if devices else {"energy_scope": None}
    if row["energy_scope"] is None:
        assert not devices
        return
    kinds = row["energy_scope"].split("+")
    total_w = sum(row[f"{kind}_energy_j"] for kind in kinds) / 4.0
    measured = {one["kind"] for one in devices} | {*(module or ())}
    if "cpu" in {one["kind"] for one in devices}:
        measured |= {*cpu}
    assert total_w <= everything * (1 + 1e-9)
    is_node = any(not slow for slow in nodes) or measured == {"node"}
    expected = everything if is_node else sum(WATTS[part] for part in measured & {*PARTS})
    assert total_w == pytest.approx(expected)
    assert len(kinds) == len({*kinds})


ENERGY = {
    "gpu_energy_j": 100.0, "cpu_energy_j": 40.0, "module_energy_j": 160.0, "node_energy_j": 240.0,
    "energy_scope": "node", "energy_source": "integral", "energy_verdict": "ok",
    "node_energy_source": "counter", "node_energy_verdict": "ok",
}  # fmt: skip


def run_of(*changes: dict[str, Any], **run: Any) -> pd.Series:
    windows = [window_row("a", place, **ENERGY | one) for place, one in enumerate(changes)]
    return run_metrics(*frames([run_row("a", **run)], windows)).iloc[0]


def test_a_run_counts_its_nodes_and_has_the_energy_of_a_node_without_its_gpus():
    run = run_of({}, {"node_energy_j": 260.0}, nodes=2, gpus=2)
    assert (run["energy_j"], run["energy_is"]) == (250.0, "node, counter")
    assert run["node_energy_j"] == 250.0
    assert run["gpu_energy_j"] == 100.0
    assert run["energy_per_node_without_gpu_j"] == 75.0


@pytest.mark.parametrize(
    ("window", "is_", "energy_j"),
    [
        ({"energy_scope": "module", "node_energy_verdict": "partial"}, "module, integral", 160.0),
        ({"energy_scope": "module+dram", "module_energy_j": None}, "gpu+cpu, integral", 140.0),
        ({"energy_scope": "gpu+cpu", "module_energy_j": None, "node_energy_j": None,
          "node_energy_verdict": "unavailable", "node_energy_source": "none"},
         "gpu+cpu, integral", 140.0),
        ({"energy_verdict": "partial"}, "node, counter", 240.0),
        ({"node_energy_verdict": "suspect"}, "node, counter, suspect", 240.0),
        ({"node_energy_source": "integral"}, "node, mixed, suspect", 240.0),
        ({"energy_scope": "module", "energy_verdict": "partial"}, "partial, left out", math.nan),
    ],
)  # fmt: skip
def test_a_run_counts_the_outermost_scope_that_all_its_windows_have(window, is_, energy_j):
    run = run_of({}, window)
    assert run["energy_is"] == is_
    assert run["energy_j"] == pytest.approx(energy_j, nan_ok=True)
    if not is_.endswith("left out"):
        rows = [ENERGY | one for one in ({}, window)]
        energy = WindowEnergy.of([{"dram_energy_j": None, **row} for row in rows])
        assert (energy.scope, energy.total_j) == (run["energy_scope"], 2 * energy_j)
