"""Energy and use of windows from samples: hand-worked cases and properties."""

from collections.abc import Sequence

import pyarrow as pa
import pytest

from wattlaw.measure.telemetry.window_energy import energy_of_windows
from wattlaw.store.schema import SAMPLES, WINDOWS

S = 1_000_000_000
Row = dict[str, object]


def energies(rows: Sequence[Row], *edges_s: tuple[float, float], **facts: object) -> list[Row]:
    """Return the energies of windows by start and length in s; all devices have the same facts."""
    asked = [
        {"host": "a", "start_ns": round(start_s * S), "duration_s": length_s}
        for start_s, length_s in edges_s
    ]
    common = {"host": "a", "device": "host", "kind": "cpu"}
    samples = pa.Table.from_pylist([{**common, **row} for row in rows], schema=SAMPLES)
    windows = pa.Table.from_pylist(asked, schema=WINDOWS)
    known = {("a", device): facts for device in samples["device"].to_pylist()}
    return energy_of_windows(windows, samples, known).to_pylist()


def boards(count: int, **more: object) -> list[Row]:
    return [
        {"device": f"GPU-{board}", "kind": "gpu", "t_ns": tick * S // 10,
         "power_w": 100.0 * (board + 1), "energy_j": 10.0 * (board + 1) * tick,
         "power_source": "measured", "sm_util": 50.0 + 10 * (tick % 2), "mem_util": 20.0,
         "sm_clock_mhz": 1200.0} | more
        for board in range(count)
        for tick in range(101)
    ]  # fmt: skip


def one_window(rows: list[Row]) -> Row:
    (row,) = energies(rows, (3, 2.0))
    return row


def test_a_window_without_an_energy_sample_has_no_energy_rather_than_zero():
    silent = [{"t_ns": s * S, "cpu_cores": 1.5, "mem_used_bytes": 7} for s in range(10)]
    (row,) = energies(silent, (1, 2.0))
    assert row["cpu_energy_j"] is None
    assert (row["energy_source"], row["energy_verdict"]) == ("none", "unavailable")
    assert (row["cpu_cores_mean"], row["mem_used_max_bytes"]) == (1.5, 7)


def test_boards_are_each_counted_once_and_add_up_both_ways():
    row = one_window(boards(11))  # device 10 is not device 1
    assert row["gpu_energy_j"] == pytest.approx(2.0 * 100 * 66)
    assert row["gpu_energy_counter_j"] == pytest.approx(row["gpu_energy_integral_j"])
    assert (row["energy_source"], row["energy_verdict"]) == ("counter", "ok")
    assert row["gpu_power_mean_w"] == pytest.approx(600.0)
    assert row["cpu_energy_j"] is None
    assert row["sm_util_mean"] == pytest.approx(55.0, rel=0.01)
    assert row["sm_util_cv"] == pytest.approx(5 / 55, rel=0.01)
    assert (row["mem_util_cv"], row["sm_clock_mean_mhz"]) == (0.0, 1200.0)


def test_a_row_that_has_an_estimate_or_a_simulation_in_it_says_so():
    host = [{"t_ns": s * S, "energy_j": 10.0 * s, "power_source": "estimated", "cpu_cores": 1.0}
            for s in range(11)]  # fmt: skip
    row = one_window(boards(1) + host)
    assert (row["gpu_energy_j"], row["cpu_energy_j"]) == pytest.approx((200.0, 20.0))
    assert row["energy_source"] == "estimated"
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


@pytest.mark.parametrize(("refresh_s", "verdict"), [(0.1, "ok"), (0.5, "suspect")])
def test_the_known_refresh_period_of_a_counter_decides_which_windows_are_too_short(
    refresh_s, verdict
):
    (row,) = energies(boards(1), (3, 0.3), counter_refresh_s=refresh_s)
    assert row["energy_verdict"] == verdict
    assert row["gpu_energy_j"] == pytest.approx(30.0)
    assert (row["energy_reason"] is None) == (verdict == "ok")


def buffered() -> list[Row]:
    """Return power ten times a second, and the counter once a second, as with a driver's buffer."""
    told = [{"device": "GPU-0", "kind": "gpu", "t_ns": s * S, "energy_j": 10.0 * 10 * s,
             "power_source": "measured"} for s in range(11)]  # fmt: skip
    return boards(1, energy_j=None) + told


@pytest.mark.parametrize(("length_s", "verdict"), [(0.3, "ok"), (0.05, "suspect")])
def test_a_counter_read_once_a_second_serves_windows_as_short_as_the_power_resolves(
    length_s, verdict
):
    (row,) = energies(buffered(), (10 / 3, length_s), counter_refresh_s=0.02)
    assert (row["energy_source"], row["energy_verdict"]) == ("counter", verdict)
    assert row["gpu_energy_j"] == pytest.approx(100 * length_s)


def test_power_that_the_board_averages_over_a_second_does_not_resolve_less():
    found = energies(boards(1, energy_j=None), (2, 0.5), (2, 1.5), power="usage")
    assert [row["energy_verdict"] for row in found] == ["suspect", "ok"]


def test_the_busy_cores_of_a_short_window_are_those_of_the_sample_that_spans_it():
    # Each sample speaks for the second before it: 1 core until 3 s, then 3 cores, then 2.
    told = [
        {"t_ns": s * S, "cpu_cores": cores}
        for s, cores in enumerate([None, 1.0, 1.0, 1.0, 3.0, 2.0])
    ]
    asked = [(3.2, 0.1), (2.5, 1.0), (2.75, 1.0), (3.0, 2.0), (0.0, 5.0), (4.9, 0.6), (6.0, 1.0)]
    expected = [3.0, 2.0, 0.25 + 0.75 * 3, 2.5, 8 / 5, 2.0, None]
    assert [row["cpu_cores_mean"] for row in energies(told, *asked)] == [
        None if cores is None else pytest.approx(cores) for cores in expected
    ]


def throttled(device: str, rate: float, limit_w: float | None = 200.0) -> list[Row]:
    """Return what a board says once a second, and that it was held down for a share of the time."""
    return [
        {"device": device, "kind": "gpu", "t_ns": s * S, "power_throttle_s": 7.0 + rate * s,
         "power_limit_w": limit_w, "power_source": "measured"}
        for s in range(11)
    ]  # fmt: skip


def test_the_share_of_time_at_the_power_limit_is_the_mean_of_the_boards():
    (row,) = energies(throttled("GPU-0", 1.0) + throttled("GPU-1", 0.25, 300.0), (10 / 3, 2.4))
    assert row["power_throttle_share"] == pytest.approx(0.625)
    assert row["power_limit_mean_w"] == pytest.approx(250.0)
    assert row["gpu_energy_j"] is None


def test_a_board_below_its_limit_has_share_zero_and_an_unknown_one_none():
    assert one_window(throttled("GPU-0", 0.0))["power_throttle_share"] == 0.0
    unknown = one_window(boards(1))
    assert unknown["power_throttle_share"] is unknown["power_limit_mean_w"] is None
    (late,) = energies(throttled("GPU-0", 1.0), (9, 2.0))  # the last second is not told of
    assert late["power_throttle_share"] is None


def test_a_limit_that_changes_is_averaged_and_one_between_two_readings_is_interpolated():
    rows = throttled("GPU-0", 0.0)
    for row in rows[5:]:
        row["power_limit_w"] = 300.0
    found = energies(rows, (3, 3.0), (4.25, 0.5), (20, 1.0))  # the first at 3, 4, 5 and 6 s
    assert [row["power_limit_mean_w"] for row in found] == [250.0, 250.0, None]
