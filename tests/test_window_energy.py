"""Energy and use of windows from samples: hand-worked cases and properties."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattlaw.store.schema import SAMPLES, WINDOWS
from wattlaw.telemetry.energy import counter_energy, energy_of_windows

S = 1_000_000_000


def windows(*rows: dict[str, object]) -> pa.Table:
    return pa.Table.from_pylist([{"host": "a", **row} for row in rows], schema=WINDOWS)


def samples(rows: list[dict[str, object]]) -> pa.Table:
    common = {"host": "a", "device": "host", "kind": "cpu"}
    return pa.Table.from_pylist([{**common, **row} for row in rows], schema=SAMPLES)


def at_ten_watts(first_s: int, last_s: int, **more: object) -> list[dict[str, object]]:
    return [
        {"t_ns": s * S, "energy_j": 10.0 * s, "power_source": "estimated", "cpu_cores": 1.0, **more}
        for s in range(first_s, last_s + 1)
    ]


def test_a_window_between_samples_is_interpolated_at_both_edges():
    table = energy_of_windows(
        windows({"start_ns": 2 * S + S // 2, "duration_s": 3.2}), samples(at_ten_watts(0, 10))
    )
    row = table.to_pylist()[0]
    assert row["cpu_energy_j"] == pytest.approx(32.0)
    assert (row["energy_source"], row["energy_verdict"]) == ("estimated", "ok")
    assert row["gpu_energy_j"] is None
    assert row["dram_energy_j"] is None


def test_a_window_without_an_energy_sample_has_no_energy_rather_than_zero():
    silent = [{"t_ns": s * S, "cpu_cores": 1.5, "mem_used_bytes": 7} for s in range(10)]
    row = energy_of_windows(windows({"start_ns": S, "duration_s": 2.0}), samples(silent))
    found = row.to_pylist()[0]
    assert found["cpu_energy_j"] is None
    assert (found["energy_source"], found["energy_verdict"]) == ("none", "unavailable")
    assert found["cpu_cores_mean"] == 1.5
    assert found["mem_used_max_bytes"] == 7


def test_a_window_that_outlasts_the_samples_is_partial_and_nothing_is_assumed_beyond_them():
    table = energy_of_windows(
        windows({"start_ns": 5 * S, "duration_s": 10.0}), samples(at_ten_watts(0, 10))
    )
    row = table.to_pylist()[0]
    assert row["cpu_energy_j"] == pytest.approx(50.0)
    assert row["energy_verdict"] == "partial"


def test_an_estimate_is_never_added_to_a_measurement():
    other = {"device": "package-0", "cpu_cores": None, "power_source": "measured"}
    estimates = at_ten_watts(0, 10)
    measured = [row | other | {"energy_j": 10 * row["energy_j"]} for row in estimates]
    table = energy_of_windows(
        windows({"start_ns": 2 * S, "duration_s": 2.0}), samples(estimates + measured)
    )
    row = table.to_pylist()[0]
    assert row["cpu_energy_j"] == pytest.approx(200.0)
    assert (row["energy_source"], row["energy_verdict"]) == ("counter", "ok")
    assert row["cpu_cores_mean"] == 1.0


def test_of_two_measured_devices_one_that_stopped_early_makes_the_energy_partial():
    both = at_ten_watts(0, 10, power_source="measured") + at_ten_watts(
        0, 1, power_source="measured", device="package-1"
    )
    table = energy_of_windows(windows({"start_ns": 4 * S, "duration_s": 2.0}), samples(both))
    assert table.to_pylist()[0]["energy_verdict"] == "partial"


def test_a_window_after_the_last_sample_has_no_energy():
    table = energy_of_windows(
        windows({"start_ns": 20 * S, "duration_s": 1.0}), samples(at_ten_watts(0, 10))
    )
    assert table.to_pylist()[0]["cpu_energy_j"] is None
    assert table.to_pylist()[0]["energy_verdict"] == "unavailable"


def test_a_window_is_met_with_the_samples_of_its_own_host_only():
    other = at_ten_watts(0, 10, host="b")
    table = energy_of_windows(windows({"start_ns": S, "duration_s": 1.0}), samples(other))
    assert table.to_pylist()[0]["cpu_energy_j"] is None


def test_no_samples_at_all_leave_everything_missing():
    table = energy_of_windows(windows({"start_ns": S, "duration_s": 1.0}), SAMPLES.empty_table())
    row = table.to_pylist()[0]
    assert row["energy_verdict"] == "unavailable"
    assert row["cpu_cores_mean"] is None


@given(
    st.lists(st.integers(1, 10**9), min_size=3, max_size=40),
    st.floats(0.1, 1e4),
    st.data(),
)
def test_constant_power_gives_power_times_time_and_neighbouring_windows_add_up(gaps, watts, data):
    t_ns = 1_700_000_000 * S + np.cumsum(np.array(gaps, dtype=np.int64))
    energy = watts * (t_ns - t_ns[0]) * 1e-9
    first, last = int(t_ns[0]), int(t_ns[-1])
    middle = data.draw(st.integers(first + 1, last - 1)) if last - first > 2 else first + 1
    whole = counter_energy(t_ns, energy, first, last)
    left, right = (counter_energy(t_ns, energy, *e) for e in ((first, middle), (middle, last)))
    assert whole.coverage == left.coverage == right.coverage == 1.0
    assert whole.energy_j == pytest.approx(watts * (last - first) * 1e-9, rel=1e-9)
    assert left.energy_j + right.energy_j == pytest.approx(whole.energy_j, rel=1e-6, abs=1e-9)
