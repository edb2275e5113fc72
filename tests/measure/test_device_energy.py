"""Energy of one device in one window: hand-worked cases, faults, and properties."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattlaw.measure.telemetry.device_energy import Counter, EnergyEstimate, Power, reconcile

S = 1_000_000_000
T0 = 1_700_000_000 * S


def ticks(seconds: float, hz: float, phase_s: float = 0.0) -> np.ndarray:
    return T0 + (np.arange(0, seconds * hz + 1) / hz * S + phase_s * S).astype(np.int64)


def test_a_counter_read_more_often_than_it_refreshes_has_no_steps():
    t_ns = ticks(10, 100)
    # What a counter of 100 W shows that refreshes every 0.1 s.
    counter = Counter(t_ns, 100.0 * np.floor((t_ns - T0) * 1e-9 / 0.1 + 1e-9) * 0.1)
    assert counter.refresh_s == pytest.approx(0.1)
    for offset_s in (0.03, 0.05, 0.07):  # between refreshes, a raw reading is up to 10 J old
        start = T0 + int((2 + offset_s) * S)
        assert counter.estimate(start, start + S).energy_j == pytest.approx(100.0, rel=1e-6)


def test_power_is_not_interpolated_over_a_silence():
    t_ns = np.concatenate([ticks(4, 10), ticks(4, 10) + 10 * S])
    found = Power(t_ns, np.full(len(t_ns), 100.0)).estimate(T0, T0 + 14 * S)
    assert found.energy_j == pytest.approx(800.0)
    assert found.coverage == pytest.approx(8 / 14)


@pytest.mark.parametrize(
    ("counter", "integral", "source", "verdict"),
    [
        (EnergyEstimate(90.0, 0.9), EnergyEstimate(None, 0.0), "counter", "partial"),
        (EnergyEstimate(90.0, 0.9), EnergyEstimate(100.0, 1.0), "integral", "ok"),
        (EnergyEstimate(90.0, 0.9), EnergyEstimate(80.0, 0.8), "counter", "partial"),
        (EnergyEstimate(None, 0.0), EnergyEstimate(100.0, 1.0), "integral", "ok"),
        (EnergyEstimate(None, 0.0), EnergyEstimate(50.0, 0.5), "integral", "partial"),
        (EnergyEstimate(0.0, 1.0), EnergyEstimate(0.0, 1.0), "counter", "ok"),
        (EnergyEstimate(100.0, 1.0), EnergyEstimate(96.0, 1.0), "counter", "ok"),
        (EnergyEstimate(100.0, 1.0), EnergyEstimate(94.0, 1.0), "counter", "suspect"),
    ],
)
def test_the_method_that_covers_the_window_is_used_and_a_difference_of_5_percent_is_suspect(
    counter, integral, source, verdict
):
    found = reconcile(counter, integral, 10.0, 0.1)
    energy_j = counter.energy_j if source == "counter" else integral.energy_j
    assert (found.source, found.verdict, found.energy_j) == (source, verdict, energy_j)


GAPS = st.lists(st.integers(1_000_000, 900_000_000), min_size=3, max_size=40)


@given(GAPS, st.lists(st.floats(0.0, 1000.0), min_size=41, max_size=41), st.data())
def test_energies_of_adjacent_windows_add_up(gaps, watts, data):
    t_ns = T0 + np.cumsum(np.array([0, *gaps], dtype=np.int64))
    power_w = np.array(watts[: len(t_ns)])
    energy = np.concatenate(
        [[0], np.cumsum(np.diff(t_ns) * 1e-9 * (power_w[1:] + power_w[:-1]) / 2)]
    )
    first, last = int(t_ns[0]), int(t_ns[-1])
    middle = data.draw(st.integers(first + 1, last - 1))
    for device in (Counter(t_ns, energy), Power(t_ns, power_w)):
        whole, left, right = (
            device.estimate(*edges) for edges in ((first, last), (first, middle), (middle, last))
        )
        assert left.energy_j + right.energy_j == pytest.approx(whole.energy_j, rel=1e-6, abs=1e-6)
        assert whole.energy_j == pytest.approx(energy[-1], rel=1e-6, abs=1e-6)
        assert whole.coverage == pytest.approx(1.0)


# A counter read once a second, with the power in between.

STEP_S = 5.25  # from 100 W to 400 W


def stepped(t_ns: np.ndarray) -> np.ndarray:
    """Return the energy since T0 of 100 W, and of 400 W from ``STEP_S`` on."""
    t_s = (t_ns - T0) * 1e-9
    return 100.0 * t_s + 300.0 * np.clip(t_s - STEP_S, 0.0, None)


@pytest.mark.parametrize(("start_s", "end_s"), [(2.0, 5.2), (5.1, 5.4), (5.3, 8.7), (1.4, 5.9)])
def test_at_the_edges_of_a_window_a_counters_energy_is_divided_as_the_power_was(start_s, end_s):
    t_ns = ticks(10, 1)
    counter = Counter(t_ns, stepped(t_ns))
    start_ns, end_ns = (T0 + round(s * S) for s in (start_s, end_s))
    exact_j = np.diff(stepped(np.array([start_ns, end_ns])))[0]
    at_ns = ticks(10, 10)
    power = Power(at_ns, np.where((at_ns - T0) * 1e-9 < STEP_S, 100.0, 400.0))
    shaped = counter.estimate(start_ns, end_ns, shape=power)
    assert shaped.energy_j == pytest.approx(exact_j, abs=300 * 0.1 / 2 + 1e-6)  # half a period
    evenly = counter.estimate(start_ns, end_ns)
    assert abs(shaped.energy_j - exact_j) < abs(evenly.energy_j - exact_j)


def test_the_end_of_a_recording_is_divided_by_the_last_known_power():
    # Counters at 9 s and, as the sampler ends, at 9.3 s; means of power up to 9.25 s.
    t_ns = T0 + np.array([8 * S, 9 * S, 9 * S + 3 * S // 10])
    counter = Counter(t_ns, np.array([0.0, 100.0, 100.0 + 0.1 * 100 + 0.2 * 400]))
    told_ns = ticks(9.25, 20)
    power = Power(told_ns, np.where((told_ns - T0) * 1e-9 < 9.1, 100.0, 400.0))
    start, end = T0 + 8 * S + S // 2, T0 + 9 * S + S // 5
    exact_j = 50 + 0.1 * 100 + 0.1 * 400
    shaped = counter.estimate(start, end, shape=power.extended())
    assert shaped.energy_j == pytest.approx(exact_j, rel=0.05)
    assert power.extended().spacing_s == power.spacing_s
    assert power.estimate(T0, T0 + 10 * S).coverage == pytest.approx(0.925)
    nothing = Power(np.array([], np.int64), np.array([]))
    assert nothing.extended().estimate(T0, T0 + S) == EnergyEstimate(None, 0.0)


@pytest.mark.parametrize("length_s", [0.2, 1.0, 1.9, 4.0])
def test_a_window_within_a_constant_counter_is_not_zero_joules(length_s):
    t_ns = ticks(20, 10)
    energy = 100.0 * (t_ns - T0) * 1e-9
    energy[80:140] = energy[80]  # from 8 s to 14 s
    counter = Counter(t_ns, energy)
    for start_s in (8.05, 9.0, 13.9 - length_s):
        start = T0 + round(start_s * S)
        part = counter.estimate(start, start + round(length_s * S), must_increase=True)
        assert (part.energy_j, part.fault) == (None, "the counter stands still")
    moving = counter.estimate(T0 + 2 * S, T0 + 7 * S, must_increase=True)
    assert (moving.energy_j, moving.fault) == (pytest.approx(500.0), None)
