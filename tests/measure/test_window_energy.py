"""Energy and use of windows from samples: hand-worked cases and properties."""

import pyarrow as pa
import pytest

from wattlaw.measure.telemetry.window_energy import energy_of_windows
from wattlaw.store.schema import SAMPLES, WINDOWS

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


def test_a_window_after_the_last_sample_has_no_energy():
    table = energy_of_windows(
        windows({"start_ns": 20 * S, "duration_s": 1.0}), samples(at_ten_watts(0, 10))
    )
    assert table.to_pylist()[0]["cpu_energy_j"] is None
    assert table.to_pylist()[0]["energy_verdict"] == "unavailable"


def test_a_window_uses_samples_of_its_host_only():
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


def test_variation_of_utilisation_is_over_the_samples_of_all_boards():
    idle, busy = ([row | {"sm_util": value} for row in boards(1, device=f"GPU-{value}")]
                  for value in (0.2, 0.8))  # fmt: skip
    row = one_window([*idle, *busy])
    assert row["sm_util_mean"] == pytest.approx(0.5)
    assert row["sm_util_cv"] == pytest.approx(0.3 / 0.5)


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


def test_a_board_that_is_lost_makes_the_sum_partial():
    rows = [row for row in boards(2) if row["device"] == "GPU-0" or row["t_ns"] < 2 * S]
    row = one_window(rows)
    assert row["gpu_energy_j"] == pytest.approx(200.0)
    assert row["gpu_energy_counter_j"] is None
    assert (row["energy_source"], row["energy_verdict"]) == ("counter", "partial")
    assert row["gpu_power_mean_w"] == pytest.approx(100.0)


def test_a_row_that_has_an_estimate_in_it_says_so():
    row = one_window(boards(1) + at_ten_watts(0, 10))
    assert row["gpu_energy_j"] == pytest.approx(200.0)
    assert row["cpu_energy_j"] == pytest.approx(20.0)
    assert row["energy_source"] == "estimated"


def test_simulated_boards_say_so():
    row = one_window(boards(2, power_source="simulated"))
    assert (row["energy_source"], row["energy_verdict"]) == ("simulated", "ok")


def test_every_reason_names_its_device():
    rows = boards(3)
    for row in rows:
        if row["device"] == "GPU-1":
            row["energy_j"] = 5.0
        if row["device"] == "GPU-2":
            row["power_w"] = 200.0
    row = one_window(rows)
    assert row["energy_verdict"] == "suspect"
    assert row["energy_reason"] == (
        "GPU-1: the counter stands still; GPU-2: counter and integral differ by 33%"
    )
    assert row["gpu_energy_j"] == pytest.approx(2 * (100 + 200 + 300))
    assert row["gpu_energy_counter_j"] is None
    assert row["gpu_energy_integral_j"] == pytest.approx(2 * (100 + 200 + 200))


def test_a_partly_covered_window_has_its_share():
    rows = [row for row in boards(1) if row["t_ns"] <= 4 * S]
    row = one_window(rows)
    assert row["energy_verdict"] == "partial"
    assert row["energy_reason"] == "GPU-0: 50% of the window is covered"


@pytest.mark.parametrize(("refresh_s", "verdict"), [(0.1, "ok"), (0.5, "suspect")])
def test_the_known_refresh_period_of_a_counter_decides_which_windows_are_too_short(
    refresh_s, verdict
):
    window = windows({"start_ns": 3 * S, "duration_s": 0.3})
    table = energy_of_windows(
        window, samples(boards(1)), {("a", "GPU-0"): {"counter_refresh_s": refresh_s}}
    )
    (row,) = table.to_pylist()
    assert row["energy_verdict"] == verdict
    assert row["gpu_energy_j"] == pytest.approx(30.0)
    assert (row["energy_reason"] is None) == (verdict == "ok")


def buffered(count: int = 101, **more: object) -> list[dict[str, object]]:
    """Return power ten times a second, and the counter once a second, as with a driver's buffer."""
    rows = boards(1, energy_j=None, **more)[:count]
    told = [{"device": "GPU-0", "kind": "gpu", "t_ns": s * S, "energy_j": 10.0 * 10 * s,
             "power_source": "measured"} for s in range(count // 10 + 1)]  # fmt: skip
    return rows + told


@pytest.mark.parametrize(("length_s", "verdict"), [(0.3, "ok"), (0.05, "suspect")])
def test_a_counter_read_once_a_second_serves_windows_as_short_as_the_power_resolves(
    length_s, verdict
):
    window = windows({"start_ns": 3 * S + S // 3, "duration_s": length_s})
    (row,) = energy_of_windows(
        window, samples(buffered()), {("a", "GPU-0"): {"counter_refresh_s": 0.02}}
    ).to_pylist()
    assert (row["energy_source"], row["energy_verdict"]) == ("counter", verdict)
    assert row["gpu_energy_j"] == pytest.approx(100 * length_s)


def test_without_power_a_counter_does_not_resolve_windows_below_its_period():
    rows = [row for row in buffered() if row.get("power_w") is None]
    window = windows({"start_ns": 3 * S + S // 3, "duration_s": 0.3})
    (row,) = energy_of_windows(
        window, samples(rows), {("a", "GPU-0"): {"counter_refresh_s": 0.02}}
    ).to_pylist()
    assert (row["energy_source"], row["energy_verdict"]) == ("counter", "suspect")


def test_the_busy_cores_of_a_short_window_are_those_of_the_sample_that_spans_it():
    # Each sample speaks for the second before it: 1 core until 3 s, then 3 cores, then 2.
    told = [{"t_ns": s * S, "cpu_cores": cores} for s, cores in
            enumerate([None, 1.0, 1.0, 1.0, 3.0, 2.0])]  # fmt: skip
    asked = [(3.2, 0.1), (2.5, 1.0), (2.75, 1.0), (3.0, 2.0), (0.0, 5.0), (4.9, 0.6), (6.0, 1.0)]
    table = energy_of_windows(
        windows(*({"start_ns": round(s * S), "duration_s": d} for s, d in asked)), samples(told)
    )
    expected = [3.0, 2.0, 0.25 + 0.75 * 3, 2.5, 8 / 5, 2.0, None]
    assert table["cpu_cores_mean"].to_pylist() == [
        None if cores is None else pytest.approx(cores) for cores in expected
    ]


def throttled(device: str, rate: float, limit_w: float | None = 200.0) -> list[dict[str, object]]:
    """Return what a board says once a second, and that it was held down for a share of the time."""
    return [
        {"device": device, "kind": "gpu", "t_ns": s * S, "power_throttle_s": 7.0 + rate * s,
         "power_limit_w": limit_w, "power_source": "measured"}
        for s in range(11)
    ]  # fmt: skip


def test_the_share_of_time_at_the_power_limit_is_the_mean_of_the_boards():
    rows = throttled("GPU-0", 1.0) + throttled("GPU-1", 0.25, 300.0)
    table = energy_of_windows(
        windows({"start_ns": 3 * S + S // 3, "duration_s": 2.4}), samples(rows)
    )
    (row,) = table.to_pylist()
    assert row["power_throttle_share"] == pytest.approx(0.625)
    assert row["power_limit_mean_w"] == pytest.approx(250.0)
    assert row["gpu_energy_j"] is None


def test_a_board_below_its_limit_has_share_zero_and_an_unknown_one_none():
    window = windows(TWO_SECONDS)
    never = energy_of_windows(window, samples(throttled("GPU-0", 0.0))).to_pylist()[0]
    assert never["power_throttle_share"] == 0.0
    unknown = energy_of_windows(window, samples(boards(1))).to_pylist()[0]
    assert unknown["power_throttle_share"] is None
    assert unknown["power_limit_mean_w"] is None
    late = windows({"start_ns": 9 * S, "duration_s": 2.0})  # the last second is not told of
    found = energy_of_windows(late, samples(throttled("GPU-0", 1.0))).to_pylist()[0]
    assert found["power_throttle_share"] is None


def test_a_limit_that_changes_is_averaged_and_one_between_two_readings_is_interpolated():
    rows = throttled("GPU-0", 0.0)
    for row in rows[5:]:
        row["power_limit_w"] = 300.0
    table = energy_of_windows(
        windows(
            {"start_ns": 3 * S, "duration_s": 3.0},  # at 3, 4, 5 and 6 s
            {"start_ns": 4 * S + S // 4, "duration_s": 0.5},
            {"start_ns": 20 * S, "duration_s": 1.0},
        ),
        samples(rows),
    )
    assert table["power_limit_mean_w"].to_pylist() == [250.0, 250.0, None]


@pytest.mark.parametrize(
    ("facts", "verdict", "reason"),
    [
        ({"is_shared": True}, "suspect", "is shared"),
        ({"is_shared": False}, "ok", None),
    ],
)
def test_a_board_that_others_share_is_never_wholly_ok(facts, verdict, reason):
    window = windows({"start_ns": 2 * S, "duration_s": 3.0})
    (row,) = energy_of_windows(window, samples(boards(1)), {("a", "GPU-0"): facts}).to_pylist()
    assert row["energy_verdict"] == verdict
    assert (reason or "") in (row["energy_reason"] or "")


def test_power_that_the_board_averages_over_a_second_does_not_resolve_less():
    window = windows({"start_ns": 2 * S, "duration_s": 0.5}, {"start_ns": 2 * S, "duration_s": 1.5})
    facts = {("a", "GPU-0"): {"power": "usage"}}
    found = energy_of_windows(window, samples(boards(1, energy_j=None)), facts).to_pylist()
    assert [row["energy_verdict"] for row in found] == ["suspect", "ok"]
