"""The energy of one device in a window, from its energy counter and from its power.

Pure functions of arrays. Times without readings are not covered. A counter with a fault is not
used, and the reason is kept.
"""

import dataclasses
from dataclasses import dataclass
from typing import Literal

import numpy as np

from wattlaw.measure.telemetry.plausibility import COUNTER_SLACK_S, Bounds, Floats, Times

#: If readings cover less than this share of a window, its energy is ``partial``.
MIN_COVERAGE = 0.95
#: If counter and integral differ by more than this share, an energy is ``suspect``.
MAX_DIFFERENCE = 0.05
#: A device that is on always draws power: a counter that does not change for so long has stalled.
STALLED_S = 2.0
#: A longer time without readings, or than five sample periods, is a gap. It is not interpolated.
MAX_GAP_S = 1.0
#: Power that a device averages is the mean of this time, on most GPUs.
AVERAGE_S = 1.0
#: Samples in the shortest window whose edges change its energy by less than ``MAX_DIFFERENCE``.
_LEAST_SAMPLES = 5
#: Readings that repeat a value within this many refresh periods are not new.
_SAME_REFRESH = 1.5

Verdict = Literal["ok", "suspect", "partial", "implausible", "unavailable"]


def shortest_window_s(sample_hz: float) -> float:
    """Return the length from which any energy source can give a window the verdict ``ok``."""
    return max(AVERAGE_S, _LEAST_SAMPLES / sample_hz)


@dataclass(frozen=True)
class EnergyEstimate:
    """The energy of the covered part of a window; ``energy_j`` is None if nothing is covered."""

    energy_j: float | None
    coverage: float  # share of the window, 0 to 1
    fault: str | None = None  # why it must not be used, if so
    gap_share: float = 0.0  # share of the window in gaps between readings

    @property
    def is_valid(self) -> bool:
        return self.energy_j is not None and self.fault is None

    def checked(
        self, source: str, window_s: float, bounds: Bounds, *, busy: bool
    ) -> "EnergyEstimate":
        """Return the estimate, with a fault if its mean power is physically impossible."""
        covered_s = self.coverage * window_s
        if self.energy_j is None or self.fault is not None or not covered_s > 0:
            return self
        mean_w = self.energy_j / covered_s
        fault = bounds.fault(f"the mean power by the {source} is", mean_w, mean_w, busy=busy)
        return dataclasses.replace(self, fault=fault)


_NO_ESTIMATE = EnergyEstimate(None, 0.0)


class Counter:
    """Readings, in order of time, of a counter that refreshes less often than it may be read."""

    def __init__(self, t_ns: Times, energy_j: Floats, bounds: Bounds = Bounds()) -> None:  # noqa: B008 - frozen
        changes = np.flatnonzero(np.diff(energy_j) != 0) + 1
        #: The median time between two changes of the value, in seconds; None for fewer than three.
        self.refresh_s = (
            float(np.median(np.diff(t_ns[changes]))) * 1e-9 if len(changes) > 2 else None
        )
        keep = np.ones(len(t_ns), dtype=bool)
        if self.refresh_s is not None:
            # Of readings that repeat a value before the next refresh, only the first has its time.
            # A value that repeats for longer did not change.
            starts = np.concatenate([[0], changes])
            since_ns = t_ns[starts[np.searchsorted(starts, np.arange(len(t_ns)), side="right") - 1]]
            age_s = (t_ns - since_ns) * 1e-9
            keep = (age_s == 0) | (age_s > _SAME_REFRESH * self.refresh_s)
            keep[-1:] |= age_s[-1:] > 0
        self._t_ns, self._energy_j = t_ns[keep], energy_j[keep]
        self._constant_s = _constant_s(self._t_ns, self._energy_j)
        self._max_gap_ns = _max_gap_ns(self.spacing_s)
        allowed_s = np.diff(self._t_ns) * 1e-9 + max(COUNTER_SLACK_S, 2 * (self.refresh_s or 0.0))
        self._jumps = np.diff(self._energy_j) > bounds.max_w * allowed_s

    def estimate(
        self,
        start_ns: int,
        end_ns: int,
        *,
        must_increase: bool = False,
        shape: "Power | None" = None,
    ) -> EnergyEstimate:
        """Return the difference of the counter in a window, interpolated at its edges. With
        ``must_increase`` the device is never off, so a counter that does not change has a fault.
        ``shape`` is the power over the same time: it divides the energy between two readings at an
        edge; the total is the counter's. Without it, the energy is divided evenly, but not over a
        gap: then the time between the edge and the nearest reading is not covered."""
        t_ns, energy_j = self._t_ns, self._energy_j
        if len(t_ns) < 2 or end_ns <= start_ns:
            return _NO_ESTIMATE
        begin, end = max(start_ns, int(t_ns[0])), min(end_ns, int(t_ns[-1]))
        begin, end, gap_ns = self._trim_gaps(begin, end, shape)
        if end <= begin:
            return _NO_ESTIMATE
        first, last = self._readings_around(begin, end)
        coverage, gap_share = (ns / (end_ns - start_ns) for ns in (end - begin, gap_ns))
        if (np.diff(energy_j[first : last + 1]) < 0).any():
            return EnergyEstimate(None, coverage, "the counter went back")
        energy = self._at(end, shape) - self._at(begin, shape)
        # A window within such a time would have no energy.
        if must_increase and (energy == 0 or self._constant_s[first:last].max() > STALLED_S):
            return EnergyEstimate(None, coverage, "the counter stands still")
        fault = "the counter jumped ahead" if self._jumps[first:last].any() else None
        return EnergyEstimate(energy, coverage, fault, gap_share)

    def _readings_around(self, begin: int, end: int) -> tuple[int, int]:
        first = int(np.searchsorted(self._t_ns, begin, side="right")) - 1
        return first, int(np.searchsorted(self._t_ns, end, side="left"))

    def _trim_gaps(self, begin: int, end: int, shape: "Power | None") -> tuple[int, int, int]:
        """Return an interval without gaps at its edges, and the length in ns of the gaps inside it.
        A time without readings is no gap if its power is known."""
        gap_ns = 0
        if end <= begin:
            return begin, end, gap_ns
        first, last = self._readings_around(begin, end)
        steps_ns = np.diff(self._t_ns[first : last + 1])
        for index in np.flatnonzero(steps_ns > self._max_gap_ns) + first:
            before_ns, after_ns = int(self._t_ns[index]), int(self._t_ns[index + 1])
            if shape is not None and shape.share(before_ns, after_ns, after_ns) is not None:
                continue
            if before_ns < begin:
                begin = after_ns
            elif after_ns > end:
                end = before_ns
            else:
                gap_ns += after_ns - before_ns
        return begin, end, gap_ns

    def _at(self, t_ns: int, shape: "Power | None") -> float:
        after = max(1, int(np.searchsorted(self._t_ns, t_ns, side="left")))
        before_ns, after_ns = int(self._t_ns[after - 1]), int(self._t_ns[after])
        low, high = float(self._energy_j[after - 1]), float(self._energy_j[after])
        share = shape.share(before_ns, t_ns, after_ns) if shape is not None else None
        if share is None:
            share = (t_ns - before_ns) / (after_ns - before_ns)
        return low + share * (high - low)

    @property
    def spacing_s(self) -> float | None:
        return float(np.median(np.diff(self._t_ns))) * 1e-9 if len(self._t_ns) > 1 else None


def _constant_s(t_ns: Times, energy_j: Floats) -> Floats:
    """Return how long, in seconds, the value stays constant around each step between readings: the
    full sequence of equal values, 0 if the value changes in the step."""
    if len(t_ns) < 2:
        return np.zeros(0)
    is_constant = np.diff(energy_j) == 0
    changes = np.flatnonzero(~is_constant)
    first = np.concatenate([[0], changes + 1])
    last = np.concatenate([changes, [len(t_ns) - 1]])
    run = np.searchsorted(changes, np.arange(len(is_constant)), side="left")
    return np.where(is_constant, (t_ns[last] - t_ns[first])[run] * 1e-9, 0.0)


class Power:
    """Readings of power, which changes linearly between two readings; times are ascending."""

    def __init__(self, t_ns: Times, power_w: Floats, bounds: Bounds = Bounds()) -> None:  # noqa: B008 - frozen
        self._t_ns, self._power_w, self._bounds = t_ns, power_w, bounds
        #: The median time between two readings, in seconds; None for fewer than two.
        self.spacing_s = float(np.median(np.diff(t_ns))) * 1e-9 if len(t_ns) > 1 else None
        self._max_gap_ns = _max_gap_ns(self.spacing_s)

    def extended(self) -> "Power":
        """Continue the power for one period before its beginning and after its end, to the first
        and the last counter reading of a recording."""
        if self.spacing_s is None:
            return self
        period_ns = round(self.spacing_s * 1e9)
        t_ns, power_w = self._t_ns, self._power_w
        return Power(
            np.concatenate([t_ns[:1] - period_ns, t_ns, t_ns[-1:] + period_ns]),
            np.concatenate([power_w[:1], power_w, power_w[-1:]]),
        )

    def share(self, start_ns: int, t_ns: int, end_ns: int) -> float | None:
        """Return the share of an interval's energy before a time within it; None if the readings
        cover less than ``MIN_COVERAGE``. Where they do not cover it, the power is the mean."""
        total, part = self.estimate(start_ns, end_ns), self.estimate(start_ns, t_ns)
        if not total.energy_j or total.coverage < MIN_COVERAGE:
            return None
        total_j = total.energy_j / total.coverage
        uncovered = (1 - part.coverage) * (t_ns - start_ns) / (end_ns - start_ns)
        return (part.energy_j or 0.0) / total_j + uncovered

    def estimate(self, start_ns: int, end_ns: int) -> EnergyEstimate:
        if len(self._t_ns) < 2 or end_ns <= start_ns:
            return _NO_ESTIMATE
        first = max(0, int(np.searchsorted(self._t_ns, start_ns, side="right")) - 1)
        last = min(len(self._t_ns), int(np.searchsorted(self._t_ns, end_ns, side="left")) + 1)
        t_ns, power_w = self._t_ns[first:last] - start_ns, self._power_w[first:last]
        if len(t_ns) < 2:
            return _NO_ESTIMATE
        begin, end = (np.clip(edge, 0, end_ns - start_ns) for edge in (t_ns[:-1], t_ns[1:]))
        is_covered = (end > begin) & (np.diff(t_ns) <= self._max_gap_ns)
        if not is_covered.any():
            return _NO_ESTIMATE
        ends_w = np.interp(begin, t_ns, power_w), np.interp(end, t_ns, power_w)
        pieces = (end - begin) * 1e-9 * (ends_w[0] + ends_w[1]) / 2
        coverage = float((end - begin)[is_covered].sum()) / (end_ns - start_ns)
        read_w = np.concatenate([power_w[:-1][is_covered], power_w[1:][is_covered]])
        fault = self._bounds.fault("a power reading is", float(read_w.min()), float(read_w.max()))
        return EnergyEstimate(float(pieces[is_covered].sum()), coverage, fault)


def _max_gap_ns(spacing_s: float | None) -> float:
    return max(MAX_GAP_S, 5 * (spacing_s or 0.0)) * 1e9


@dataclass(frozen=True)
class DeviceEnergy:
    counter_j: float | None
    integral_j: float | None
    energy_j: float | None
    source: Literal["counter", "integral", "none"]
    coverage: float
    verdict: Verdict
    reason: str | None = None


def reconcile(
    counter: EnergyEstimate,
    integral: EnergyEstimate,
    window_s: float,
    resolution_s: float | None,
    power_spacing_s: float | None = None,
) -> DeviceEnergy:
    """Choose the energy of a window from the counter and the integral, and give a verdict.

    The counter is used unless it has a fault or covers less of the window than the power does.
    If between ``MIN_COVERAGE`` and all of the window is covered, the energy is scaled to it.

    - ``partial``: less than ``MIN_COVERAGE`` of the window is covered. The energy is that of the
      covered part.
    - ``suspect``: counter and integral differ by more than ``MAX_DIFFERENCE``, one of them has a
      fault, the counter has gaps for more than ``1 - MIN_COVERAGE`` of the window, or the window
      is shorter than the resolution of the counter or, where power is used, than the time between
      power readings.
    - ``implausible``: neither is without a fault. The energy is a faulty one.
    """
    counter, integral = _scaled_to_window(counter), _scaled_to_window(integral)
    covers_enough = counter.coverage >= min(MIN_COVERAGE, integral.coverage)
    if counter.is_valid or integral.is_valid:
        by_counter = counter.is_valid and (covers_enough or not integral.is_valid)
    else:
        by_counter = integral.energy_j is None
    used = counter if by_counter else integral
    faults = "; ".join(estimate.fault for estimate in (counter, integral) if estimate.fault)
    if used.energy_j is None:
        faults = faults or "it has no readings in the window"
        return DeviceEnergy(None, None, None, "none", 0.0, "unavailable", faults)
    both_j = [e.energy_j for e in (counter, integral) if e.energy_j is not None]
    are_comparable = len(both_j) == 2 and min(counter.coverage, integral.coverage) >= MIN_COVERAGE
    greater_j, difference = max(both_j), 0.0  # relative to the greater
    if are_comparable and greater_j > 0:
        difference = (greater_j - min(both_j)) / greater_j
    reason = None
    if faults:
        reason = faults
    elif by_counter and resolution_s is not None and window_s < resolution_s:
        resolution = f"the resolution of counter and power, {resolution_s:.3g} s"
        reason = f"the window is shorter than {resolution}"
    elif not by_counter and power_spacing_s is not None and window_s < power_spacing_s:
        reason = "the window is shorter than the time between power readings"
    elif difference > MAX_DIFFERENCE:
        reason = f"counter and integral differ by {difference:.0%}"
    elif used.gap_share > 1 - MIN_COVERAGE:
        reason = f"there are no readings for {used.gap_share:.0%} of the window"
    verdict: Verdict = "suspect" if reason else "ok"
    if not used.is_valid:
        verdict = "implausible"
    elif used.coverage < MIN_COVERAGE:
        verdict, reason = "partial", f"{used.coverage:.0%} of the window is covered"
    return DeviceEnergy(
        counter.energy_j if by_counter or counter.is_valid else None,
        integral.energy_j if not by_counter or integral.is_valid else None,
        used.energy_j,
        "counter" if by_counter else "integral",
        used.coverage,
        verdict,
        reason,
    )


def _scaled_to_window(estimate: EnergyEstimate) -> EnergyEstimate:
    """Scale an estimate that covers nearly all of a window to all of it, at its mean power.
    Otherwise the energy of windows would be biased towards lower values."""
    if estimate.energy_j is None or not MIN_COVERAGE <= estimate.coverage < 1:
        return estimate
    return dataclasses.replace(estimate, energy_j=estimate.energy_j / estimate.coverage)
