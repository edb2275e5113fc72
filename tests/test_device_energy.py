"""Energy of one device in one window: hand-worked cases, faults, and properties."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattlaw.telemetry.device_energy import Counter, Part, Power, judged

S = 1_000_000_000
T0 = 1_700_000_000 * S


def ticks(seconds: float, hz: float, phase_s: float = 0.0) -> np.ndarray:
    return T0 + (np.arange(0, seconds * hz + 1) / hz * S + phase_s * S).astype(np.int64)


def refreshed(t_ns: np.ndarray, watts: float, refresh_s: float) -> np.ndarray:
    """Return what a counter that refreshes every ``refresh_s`` shows at these moments."""
    return watts * np.floor((t_ns - T0) * 1e-9 / refresh_s + 1e-9) * refresh_s


@pytest.mark.parametrize("window_s", [1.0, 60.0])
def test_constant_power_is_found_both_ways_to_a_thousandth(window_s):
    t_ns = ticks(70, 10)
    start, end = T0 + 3 * S + 123_456_789, T0 + int((3.123456789 + window_s) * S)
    counter = Counter(t_ns, refreshed(t_ns, 250.0, 0.1)).between(start, end)
    power = Power(t_ns, np.full(len(t_ns), 250.0)).between(start, end)
    assert counter.energy_j == pytest.approx(250.0 * window_s, rel=1e-3)
    assert power.energy_j == pytest.approx(250.0 * window_s, rel=1e-3)
    assert (counter.coverage, power.coverage) == (1.0, pytest.approx(1.0))


def test_a_counter_read_more_often_than_it_refreshes_has_no_steps():
    t_ns = ticks(10, 100)
    counter = Counter(t_ns, refreshed(t_ns, 100.0, 0.1))
    assert counter.refresh_s == pytest.approx(0.1)
    for offset_s in (0.03, 0.05, 0.07):  # between refreshes, a raw reading is up to 10 J old
        start = T0 + int((2 + offset_s) * S)
        assert counter.between(start, start + S).energy_j == pytest.approx(100.0, rel=1e-6)


def test_a_square_wave_of_one_hertz_is_found_to_a_hundredth():
    t_ns = ticks(70, 10, phase_s=0.013)
    on = (t_ns - T0) * 1e-9 % 1.0 < 0.5
    start, end = T0 + 5 * S + S // 4, T0 + 65 * S + S // 4
    found = Power(t_ns, np.where(on, 400.0, 100.0)).between(start, end)
    assert found.energy_j == pytest.approx(250.0 * 60, rel=0.01)


def test_a_counter_that_goes_back_is_not_used_and_said_so():
    t_ns = ticks(10, 10)
    energy = 100.0 * (t_ns - T0) * 1e-9
    energy[50:] -= 400.0  # the driver was loaded anew
    counter = Counter(t_ns, energy)
    assert counter.between(T0 + 4 * S, T0 + 6 * S).fault == "the counter went back"
    assert counter.between(T0 + 6 * S, T0 + 8 * S).energy_j == pytest.approx(200.0)
    power = Power(t_ns, np.full(len(t_ns), 100.0)).between(T0 + 4 * S, T0 + 6 * S)
    found = judged(counter.between(T0 + 4 * S, T0 + 6 * S), power, 2.0, counter.refresh_s)
    assert (found.source, found.verdict) == ("integral", "suspect")
    assert found.energy_j == pytest.approx(200.0)
    assert found.counter_j is None


@pytest.mark.parametrize("frozen_from", [0, 50])
def test_a_counter_that_stands_still_is_not_zero_joules(frozen_from):
    t_ns = ticks(20, 10)
    energy = 100.0 * (t_ns - T0) * 1e-9
    energy[frozen_from:] = energy[frozen_from]
    counter = Counter(t_ns, energy)
    part = counter.between(T0 + 10 * S, T0 + 15 * S, must_move=True)
    assert (part.energy_j, part.fault) == (None, "the counter stands still")
    found = judged(part, Part(None, 0.0), 5.0, counter.refresh_s)
    assert (found.energy_j, found.verdict) == (None, "unavailable")
    assert found.reason == "the counter stands still"


def test_an_estimate_may_stand_still_because_processes_may_be_idle():
    t_ns = ticks(20, 10)
    busy = np.clip((t_ns - T0) * 1e-9 - 10.0, 0.0, None)  # idle for ten seconds, then one core
    counter = Counter(t_ns, 15.0 * busy)
    assert counter.between(T0 + 2 * S, T0 + 8 * S).energy_j == 0.0
    assert counter.between(T0 + 9 * S, T0 + 12 * S).energy_j == pytest.approx(30.0, rel=0.02)


def test_a_window_shorter_than_the_refresh_period_is_marked():
    t_ns = ticks(10, 100)
    counter = Counter(t_ns, refreshed(t_ns, 100.0, 0.1))
    start, end = T0 + 2 * S, T0 + 2 * S + S // 20
    found = judged(counter.between(start, end), Part(None, 0.0), 0.05, counter.refresh_s)
    assert found.verdict == "suspect"
    assert "shorter than" in found.reason


def test_power_is_not_interpolated_over_a_silence():
    t_ns = np.concatenate([ticks(4, 10), ticks(4, 10) + 10 * S])
    found = Power(t_ns, np.full(len(t_ns), 100.0)).between(T0, T0 + 14 * S)
    assert found.energy_j == pytest.approx(800.0)
    assert found.coverage == pytest.approx(8 / 14)


def test_a_counter_speaks_for_a_silence_that_power_cannot():
    t_ns = np.concatenate([ticks(4, 10), ticks(4, 10) + 10 * S])
    counter = Counter(t_ns, 100.0 * (t_ns - T0) * 1e-9)
    power = Power(t_ns, np.full(len(t_ns), 100.0))
    both = (one.between(T0 + S, T0 + 13 * S) for one in (counter, power))
    found = judged(*both, 12.0, counter.refresh_s)
    assert (found.source, found.verdict) == ("counter", "ok")
    assert found.energy_j == pytest.approx(1200.0)


def test_two_ways_that_differ_by_more_than_five_percent_are_suspect():
    one, close, far = Part(100.0, 1.0), Part(96.0, 1.0), Part(94.0, 1.0)
    assert judged(one, close, 10.0, 0.1).verdict == "ok"
    found = judged(one, far, 10.0, 0.1)
    assert (found.verdict, found.energy_j, found.source) == ("suspect", 100.0, "counter")
    assert found.reason == "counter and integral differ by 6%"


@pytest.mark.parametrize(
    ("counter", "integral", "source", "verdict"),
    [
        (Part(90.0, 0.9), Part(None, 0.0), "counter", "partial"),
        (Part(90.0, 0.9), Part(100.0, 1.0), "integral", "ok"),
        (Part(90.0, 0.9), Part(80.0, 0.8), "counter", "partial"),
        (Part(None, 0.0), Part(100.0, 1.0), "integral", "ok"),
        (Part(None, 0.0), Part(50.0, 0.5), "integral", "partial"),
        (Part(0.0, 1.0), Part(0.0, 1.0), "counter", "ok"),
    ],
)
def test_the_way_that_covers_the_window_is_used(counter, integral, source, verdict):
    found = judged(counter, integral, 10.0, 0.1)
    assert (found.source, found.verdict) == (source, verdict)


def test_nothing_read_is_nothing_known():
    for found in (
        Counter(np.array([], np.int64), np.array([])).between(T0, T0 + S),
        Counter(np.array([T0]), np.array([5.0])).between(T0 - S, T0 + S),
        Power(np.array([], np.int64), np.array([])).between(T0, T0 + S),
        Power(ticks(1, 10), np.ones(11)).between(T0 + 2 * S, T0 + 3 * S),
        Counter(ticks(1, 10), np.arange(11.0)).between(T0 + 2 * S, T0 + 3 * S),
    ):
        assert found == Part(None, 0.0)


GAPS = st.lists(st.integers(1_000_000, 900_000_000), min_size=3, max_size=40)


@given(GAPS, st.lists(st.floats(0.0, 1000.0), min_size=41, max_size=41), st.data())
def test_neighbouring_windows_add_up_to_the_whole(gaps, watts, data):
    t_ns = T0 + np.cumsum(np.array([0, *gaps], dtype=np.int64))
    power_w = np.array(watts[: len(t_ns)])
    energy = np.concatenate(
        [[0], np.cumsum(np.diff(t_ns) * 1e-9 * (power_w[1:] + power_w[:-1]) / 2)]
    )
    first, last = int(t_ns[0]), int(t_ns[-1])
    middle = data.draw(st.integers(first + 1, last - 1))
    for device in (Counter(t_ns, energy), Power(t_ns, power_w)):
        whole, left, right = (
            device.between(*edges) for edges in ((first, last), (first, middle), (middle, last))
        )
        assert left.energy_j + right.energy_j == pytest.approx(whole.energy_j, rel=1e-6, abs=1e-6)
        assert whole.energy_j == pytest.approx(energy[-1], rel=1e-6, abs=1e-6)
        assert whole.coverage == pytest.approx(1.0)
