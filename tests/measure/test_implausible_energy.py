"""Impossible energies: boards that say something wrong, synthetic samples, another unit."""

import itertools
import re
import time

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_nvidia_meter import LOST, opened
from test_window_energy import Row, S, energies

from fake_nvml import SETTER_DOES_NOTHING, SETTER_IS_LATE, FakeGpus
from imported import made
from recording import HOST, record
from wattlaw.api.imports import read_import
from wattlaw.measure.devices.meter import Sample
from wattlaw.measure.devices.nvidia.nvidia_limiter import NvidiaLimiter
from wattlaw.measure.limits.requests import Limits, report_applied_limits
from wattlaw.measure.telemetry import plausibility
from wattlaw.measure.telemetry.window_energy import energy_of_windows
from wattlaw.running.finish import _not_enforced
from wattlaw.store.record import VERDICTS, LimitReport, device_facts
from wattlaw.store.schema import SAMPLES, WINDOWS


def windows_of(*edges_s: tuple[float, float]) -> pa.Table:
    """Return windows by start and length, in seconds."""
    rows = [{"host": HOST, "start_ns": round(a * S), "duration_s": s} for a, s in edges_s]
    return pa.Table.from_pylist(rows, schema=WINDOWS)


def readings(seconds: float = 20, hz: float = 10, **columns: object) -> list[Row]:
    rows = []
    for tick in range(round(seconds * hz) + 1):
        t_s = tick / hz
        row: Row = {"device": "GPU-0", "kind": "gpu", "t_ns": round(t_s * S)}
        row["power_source"] = "measured"
        row |= {name: told(t_s) if callable(told) else told for name, told in columns.items()}
        rows.append(row)
    return rows


@pytest.mark.parametrize("buffers", [0, 1])
def test_sentinels_of_the_driver_are_missing_values(fake_gpus, buffers):
    boards = fake_gpus(1, buffers=buffers)
    meter = opened(boards)
    assert any(sample.power_w for sample in meter.read(last=True))
    for what in ("power", "sm_util", "mem_util", "sm_clock", "mem_clock", "temperature", "limit"):
        boards.lie(0, what, "sets", 2**32 - 1)
    for what in ("counter", "memory", "reasons", "violation"):
        boards.lie(0, what, "sets", 2**64 - 1)
    found = [sample for _ in range(3) for sample in meter.read(last=True)]
    meter.close()
    for name in Sample._fields[3:]:
        assert {getattr(sample, name) for sample in found} <= {None, "measured"}, name


def test_a_handle_that_answers_for_another_board_ends_the_samples(fake_gpus):
    boards = fake_gpus(1)
    meter = opened(boards)
    assert meter.read(last=True)
    boards[0].uuid = "GPU-ffffffff-1111-4222-8333-000000000000"
    assert meter.read(last=True) == []
    assert "GPU-ffffffff" in meter.problems()[0]


def test_a_board_that_never_answers_after_it_was_opened_makes_the_sum_partial(tmp_path):
    boards = FakeGpus.create(tmp_path / "boards", 2)
    boards.fault("nvmlDeviceGetUtilizationRates", 1, LOST)  # not called before the first reading
    (found,) = record({tmp_path / "live": boards}, 2.5)
    assert len(found.of(1)) == 0
    assert "failed" in found.facts(1)
    start_ns = int(found.of(0)["t_ns"].to_numpy().min()) + S // 2
    facts = device_facts([found.report])
    window = windows_of((start_ns / S, 1.5))
    (row,) = energy_of_windows(window, found.samples, facts).to_pylist()
    assert (row["energy_verdict"], row["gpu_energy_j"]) == ("partial", pytest.approx(375, rel=0.02))


def test_a_driver_clock_that_goes_back_gives_ascending_times(fake_gpus):
    boards = fake_gpus(1, buffers=1)
    meter = opened(boards)
    (reader,) = meter._readers
    found = []
    for number in range(4):
        time.sleep(0.3)
        boards.clear_lies()
        boards.lie(0, "sample_time", "adds", -700_000 * number)
        reader._second_ns = 0
        found += meter.read(last=True)
    meter.close()
    for column in ("power_w", "energy_j"):
        t_ns = [sample.t_ns for sample in found if getattr(sample, column) is not None]
        assert all(later > earlier for earlier, later in itertools.pairwise(t_ns))


@pytest.mark.parametrize(
    ("mode", "wait_ms", "enforced_w"),
    [(SETTER_DOES_NOTHING, 0, 400.0), (SETTER_IS_LATE, 200, 200.0), (SETTER_IS_LATE, 5000, 400.0)],
)
def test_a_setter_that_reports_success_is_read_back(fake_gpus, mode, wait_ms, enforced_w):
    boards = fake_gpus(1, setter_mode=mode, setter_ms=wait_ms)
    limiter = NvidiaLimiter.open()
    (uuid,) = limiter.devices()
    before = limiter.read(uuid)
    limiter.set_power_limit(uuid, 200.0)
    report = report_applied_limits(before, Limits(200.0), "nvidia", limiter)
    assert report.power_limit_enforced_w == enforced_w
    assert (report.note is None) == (enforced_w == 200.0)
    limiter.close()
    assert len(boards) == 1


RAMP = {"energy_j": lambda s: 250.0 * s}


@pytest.mark.parametrize(
    ("columns", "facts", "verdict"),
    [
        ({"power_w": 250.0}, {}, "ok"),
        ({"power_w": 250_000.0}, {}, "implausible"),
        ({"power_w": 700.0}, {"max_power_limit_w": 400.0}, "implausible"),
        ({"power_w": 500.0}, {"max_power_limit_w": 400.0}, "ok"),
        ({"power_w": 250_000.0}, {"max_power_limit_w": 400_000.0}, "implausible"),
        ({"power_w": 0.0}, {}, "implausible"),
        ({"power_w": 5.0, "sm_util": 0.9}, {"max_power_limit_w": 400.0}, "implausible"),
        ({"power_w": 9.0, "sm_util": 0.0}, {"max_power_limit_w": 450.0}, "ok"),
        ({"power_w": None, "energy_j": lambda s: 250_000.0 * s}, {}, "implausible"),
        ({"power_w": 250.0, "energy_j": lambda s: 250_000.0 * s}, {}, "suspect"),
        ({"power_w": 250_000.0, **RAMP}, {}, "suspect"),
        ({"power_w": 250_000.0, "energy_j": lambda s: 250_000.0 * s}, {}, "implausible"),
        ({"power_w": 0.0, **RAMP}, {}, "suspect"),
        ({"power_w": 0.0, "energy_j": 7.0}, {}, "implausible"),
        ({"power_w": None, "energy_j": lambda s: 250.0 * s + 1e9 * (s > 6)}, {}, "implausible"),
        ({"power_w": 250.0, "energy_j": lambda s: 250.0 * s + 1e9 * (s > 6)}, {}, "suspect"),
        ({"power_w": None, "energy_j": lambda s: 1e-3 * s}, {}, "implausible"),
        ({"power_w": 2**32 / 1e3}, {}, "unavailable"),
        ({"power_w": float("nan")}, {}, "unavailable"),
        ({"power_w": -250.0}, {}, "unavailable"),
        ({"power_w": 250.0, "energy_j": 2.0**64 / 1e3}, {}, "ok"),
        ({"power_w": lambda s: 250.0 if s != 7 else 5000.0}, {}, "implausible"),
        ({"power_w": lambda s: 250.0 if s != 7 else 0.0}, {}, "implausible"),
        ({"power_w": lambda s: 250.0 if s != 7 else float("inf")}, {}, "ok"),
    ],
)
def test_bounds_of_a_gpu(columns, facts, verdict):
    (row,) = energies(readings(**columns), (5, 4), **facts)
    assert row["energy_verdict"] == verdict
    assert (row["energy_reason"] is None) == (verdict == "ok")
    assert (row["gpu_energy_j"] is None) == (verdict == "unavailable")


@pytest.mark.parametrize(("kind", "least_w", "most_w"), [("cpu", 0.05, 2500), ("dram", 0, 1500)])
def test_bounds_of_processors_and_memory(kind, least_w, most_w):
    for watts in (least_w, most_w):
        rows = readings(energy_j=lambda s, watts=watts: 1.0 + watts * s, kind=kind)
        (row,) = energies(rows, (5, 4))
        assert row["energy_verdict"] in ("implausible", "unavailable")


def wave(low: float, high: float, period_s: float = 2.0):
    return lambda s: high if s % period_s < period_s / 2 else low


@pytest.mark.parametrize("length_s", [0.5, 2.0, 10.0])
@pytest.mark.parametrize(
    "load",
    [
        {"sm_util": wave(0.05, 0.95)},
        {"sm_util": 0.5, "sm_clock_mhz": wave(300, 1400)},
        {"sm_util": wave(0.05, 0.95), "power_limit_w": 123.4},
    ],
)
def test_power_that_stays_the_same_under_changing_load_is_stuck(load, length_s):
    (row,) = energies(readings(power_w=123.4, **load), (5, length_s))
    assert row["energy_verdict"] == "implausible"
    (row,) = energies(readings(power_w=123.4, energy_j=lambda s: 123.0 * s, **load), (5, length_s))
    assert (row["energy_verdict"], row["energy_source"]) == ("suspect", "counter")


@pytest.mark.parametrize(
    ("columns", "facts"),
    [
        ({"power_w": 9.0, "sm_util": 0.0, "sm_clock_mhz": 300}, {}),  # an idle board
        ({"power_w": 9.0, "sm_util": wave(0, 0.1), "sm_clock_mhz": wave(210, 405)}, {}),
        # A sensor of whole watts at a binding limit: the clock moves so that power does not.
        ({"power_w": 250.0, "power_limit_w": 250.0, "sm_util": wave(0.8, 1.0),
          "sm_clock_mhz": wave(900, 1900, 0.4)}, {}),
        ({"power_w": 250.0, "power_limit_w": 250.0,
          "sm_util": lambda s: 0.0 if round(10 * s) % 50 == 0 else 1.0}, {}),
        # Power averaged over a second does not show a load that changes faster.
        ({"power_w": 150.0, "sm_util": wave(0, 1, 0.4)}, {"power": "average"}),
        ({"power_w": lambda s: round(wave(60, 250, 6.0)(s)), "sm_util": wave(0, 1, 6.0)}, {}),
        ({"power_w": lambda s: 250 + round(s * 7919) % 3, "sm_util": wave(0, 1)}, {}),
    ],
)  # fmt: skip
def test_power_that_stays_the_same_for_a_reason_is_not_stuck(columns, facts):
    rows = energies(readings(30, **columns), *((s, 4) for s in range(5, 25, 3)), **facts)
    assert {row["energy_verdict"] for row in rows} == {"ok"}


@pytest.mark.parametrize(
    ("start_s", "length_s", "verdict"),
    [(2, 16, "suspect"), (6, 2, "unavailable"), (2, 4, "partial"), (13, 4, "ok")],
)
def test_the_energy_of_a_gap_is_the_increase_of_the_counter(start_s, length_s, verdict):
    rows = [row for row in readings(power_w=250.0, **RAMP) if not 5 * S < row["t_ns"] < 9 * S]
    (row,) = energies(rows, (start_s, length_s))
    assert row["energy_verdict"] == verdict
    if verdict != "unavailable":
        covered_s = min(length_s, {"partial": 3}.get(verdict, length_s))
        assert row["gpu_energy_j"] == pytest.approx(250 * covered_s)


NUMBERS = st.one_of(
    st.none(), st.floats(), st.floats(-1e3, 1e7), st.sampled_from([0.0, 4294967.295, 250.0, 1e9])
)
TIMES = st.one_of(st.integers(0, 20 * S), st.integers(-(2**63), 2**63 - 1), st.none())


@st.composite
def sequences(draw) -> list[Row]:
    """Return samples of some devices: sound ones with some columns and times replaced."""
    rows: list[Row] = []
    for number in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["gpu", "cpu", "dram", "node"]))
        watts, counted = draw(st.floats(0, 4000)), draw(st.booleans())
        own = readings(
            draw(st.integers(1, 12)),
            kind=kind,
            power_w=lambda s, watts=watts: watts * (1 + s % 3),
            energy_j=(lambda s, watts=watts: watts * s) if counted else None,
            sm_util=wave(0, 1),
        )
        source = draw(st.sampled_from(["measured", "simulated", "estimated", None]))
        for row in own:
            row |= {"device": f"{kind}-{number}", "power_source": source}
        for _ in range(draw(st.integers(0, 6))):
            column = draw(st.sampled_from(["power_w", "energy_j", "sm_util", "t_ns"]))
            row = draw(st.sampled_from(own))
            row[column] = draw(TIMES if column == "t_ns" else NUMBERS)
        rows += own
    return rows


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    sequences(),
    st.floats(0, 12),
    st.floats(0.01, 20),
    st.sampled_from([None, 0.0, 70.0, 400.0, 4e5, float("nan"), "text"]),
)
def test_an_ok_energy_is_physically_possible_for_any_samples(rows, start_s, length_s, limit):
    (row,) = energies(rows, (start_s, length_s), max_power_limit_w=limit)
    assert row["energy_verdict"] in VERDICTS
    devices = len({one["device"] for one in rows if one["power_source"] == "measured"})
    for kind in ("gpu", "cpu", "dram"):
        energy_j = row[f"{kind}_energy_j"]
        if energy_j is None:
            continue
        assert 0 <= energy_j < float("inf")
        if row["energy_verdict"] != "ok" or row["energy_source"] in ("simulated", "estimated"):
            continue
        most_w = plausibility.MAX_DEVICE_W[kind]
        if isinstance(limit, float) and limit > 0:
            most_w = min(most_w, plausibility.MAX_POWER_FACTOR * limit)
        assert energy_j <= most_w * length_s * devices * (1 + 1e-6)


@pytest.mark.parametrize(("mhz", "count"), [(900.0, 0), (915.0, 0), (1410.0, 1)])
def test_an_ineffective_clock_lock_gives_a_note(mhz, count):
    limit = LimitReport(
        host=HOST, device="GPU-0", limiter="nvidia", power_limit_w=None,
        power_limit_enforced_w=None, power_limit_before_w=400.0, clock_limit_mhz=900.0,
    )  # fmt: skip
    rows = [{"host": HOST} | row for row in readings(sm_clock_mhz=mhz)]
    samples = pa.Table.from_pylist(rows, schema=SAMPLES)
    assert len([*_not_enforced([limit], windows_of((5, 4)), samples)]) == count
    assert [*_not_enforced([limit], windows_of((25, 4)), samples)] == []
    assert [*_not_enforced([limit], windows_of(), samples)] == []


@pytest.mark.parametrize(
    ("field", "right", "wrong"),
    [
        ("power_w", 1600.0, 1_600_000.0),  # of all four GPUs
        ("power_limit_w", 400.0, 400_000.0),
        ("gpu_energy_j", 16_000.0, 16_000_000.0),
        ("cpu_energy_j", 3000.0, 3_000_000.0),
        ("node_energy_j", 30_000.0, 30_000_000.0),
    ],
)
def test_a_row_in_another_unit_is_left_out_with_the_reason(field, right, wrong, tmp_path):
    lines = [f"4,10,{right}", f"4,10.5,{wrong}", f"4,11,{right}"]
    path = made(tmp_path, "t.csv", "gpus,t,x", *lines)
    read = read_import(path, map=f"gpus=gpus,epoch_time_s=t,{field}=x")
    assert [run.windows[0]["duration_s"] for run in read.runs] == [10.0, 11.0]
    (reason,) = read.files[0].rejected
    expected = "gpu_energy_j" if field == "power_w" else field
    assert re.match(f"line 3: {expected}.* mW", reason)
