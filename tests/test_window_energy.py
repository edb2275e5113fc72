"""Energy and use of windows from samples: hand-worked cases and properties."""

import pyarrow as pa
import pytest

from wattlaw.store.schema import SAMPLES, WINDOWS
from wattlaw.telemetry.energy import energy_of_windows

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


def boards(count: int, **more: object) -> list[dict[str, object]]:
    """Return ten seconds of boards of 100, 200, ... W, sampled at 10 Hz."""
    return [
        {"device": f"GPU-{board}", "kind": "gpu", "t_ns": tick * S // 10,
         "power_w": 100.0 * (board + 1), "energy_j": 10.0 * (board + 1) * tick,
         "power_source": "measured", "sm_util": 50.0 + 10 * (tick % 2), "mem_util": 20.0,
         "sm_clock_mhz": 1200.0} | more
        for board in range(count)
        for tick in range(101)
    ]  # fmt: skip


TWO_SECONDS = {"start_ns": 3 * S, "duration_s": 2.0}


def one_window(rows: list[dict[str, object]]) -> dict[str, object]:
    return energy_of_windows(windows(TWO_SECONDS), samples(rows)).to_pylist()[0]


def test_boards_are_each_counted_once_and_add_up_both_ways():
    row = one_window(boards(11))  # device 10 is not device 1
    assert row["gpu_energy_j"] == pytest.approx(2.0 * 100 * 66)
    assert row["gpu_energy_counter_j"] == pytest.approx(row["gpu_energy_integral_j"])
    assert (row["energy_source"], row["energy_verdict"]) == ("counter", "ok")
    assert row["gpu_power_mean_w"] == pytest.approx(600.0)
    assert row["cpu_energy_j"] is None
    assert row["sm_util_mean"] == pytest.approx(55.0, rel=0.01)
    assert row["sm_util_cv"] == pytest.approx(5 / 55, rel=0.01)
    assert row["mem_util_cv"] == 0.0
    assert row["sm_clock_mean_mhz"] == 1200.0


def test_a_board_without_a_counter_is_integrated_and_not_zero():
    row = one_window(boards(1, energy_j=None))
    assert row["gpu_energy_j"] == pytest.approx(200.0)
    assert row["gpu_energy_counter_j"] is None
    assert (row["energy_source"], row["energy_verdict"]) == ("integral", "ok")


def test_a_board_that_is_lost_makes_the_sum_partial():
    rows = [row for row in boards(2) if row["device"] == "GPU-0" or row["t_ns"] < 2 * S]
    row = one_window(rows)
    assert row["gpu_energy_j"] == pytest.approx(200.0)
    assert row["gpu_energy_counter_j"] is None
    assert row["energy_verdict"] == "partial"


def test_a_row_that_has_an_estimate_in_it_says_so():
    row = one_window(boards(1) + at_ten_watts(0, 10))
    assert row["gpu_energy_j"] == pytest.approx(200.0)
    assert row["cpu_energy_j"] == pytest.approx(20.0)
    assert row["energy_source"] == "estimated"


def test_simulated_boards_say_so():
    row = one_window(boards(2, power_source="simulated"))
    assert (row["energy_source"], row["energy_verdict"]) == ("simulated", "ok")
