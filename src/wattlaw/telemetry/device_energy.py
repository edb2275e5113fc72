"""The energy of one device between two moments, found two ways: by its counter, by its power.

Pure functions of arrays. Neither way invents anything: what no reading speaks for is not covered,
and a counter that misbehaves is not used, with the reason.
"""

import dataclasses
from dataclasses import dataclass
from typing import Literal

import numpy as np

from wattlaw.telemetry.plausibility import COUNTER_SLACK_S, Bounds, Floats, Times

#: Below this share of a window spoken for by readings its energy is ``partial``.
MIN_COVERAGE = 0.95
#: Above this relative gap between counter and integral an energy is ``suspect``.
MAX_DIFFERENCE = 0.05
#: No device that is on draws nothing for so long: a counter that says so stands still.
STALLED_S = 2.0
#: Nothing is interpolated over a gap longer than this, or than five sample periods.
MAX_GAP_S = 1.0
#: Readings that repeat a value within this many refresh periods tell nothing new.
_SAME_REFRESH = 1.5

Verdict = Literal["ok", "suspect", "partial", "implausible", "unavailable"]


@dataclass(frozen=True)
class EnergyEstimate:
    """Energy of the covered part of a window; ``energy_j`` is None when nothing is covered."""

    energy_j: float | None
    coverage: float  # share of the window, 0 to 1
    fault: str | None = None  # why it must not be used
    silent: float = 0.0  # share of the window that lies in gaps between its readings

    @property
    def is_valid(self) -> bool:
        """Say whether there is an energy, and nothing speaks against it."""
        return self.energy_j is not None and self.fault is None

    def checked(
        self, what: str, window_s: float, bounds: Bounds, *, busy: bool
    ) -> "EnergyEstimate":
        """Return the same, with a fault where its mean power is physically impossible."""
        covered_s = self.coverage * window_s
        if self.energy_j is None or self.fault is not None or not covered_s > 0:
            return self
        mean_w = self.energy_j / covered_s
        fault = bounds.fault(f"the mean power by the {what} is", mean_w, mean_w, busy=busy)
        return dataclasses.replace(self, fault=fault)


_NO_ESTIMATE = EnergyEstimate(None, 0.0)


class Counter:
    """Readings of a cumulative energy counter that refreshes less often than it may be read.

    Parameters
    ----------
    t_ns, energy_j
        Shape (n,): readings of one device, times ascending.
    bounds
        The power that the device can draw.
    """

    def __init__(self, t_ns: Times, energy_j: Floats, bounds: Bounds = Bounds()) -> None:  # noqa: B008 - frozen
        changes = np.flatnonzero(np.diff(energy_j) != 0) + 1
        #: The median time between two changes of the value, in seconds; None if it hardly changed.
        self.refresh_s = (
            float(np.median(np.diff(t_ns[changes]))) * 1e-9 if len(changes) > 2 else None
        )
        keep = np.ones(len(t_ns), dtype=bool)
        if self.refresh_s is not None:
            # A value read again before the next refresh is old news: only the reading that saw it
            # first says when it was true. A value that stays for longer did stay.
            starts = np.concatenate([[0], changes])
            began = t_ns[starts[np.searchsorted(starts, np.arange(len(t_ns)), side="right") - 1]]
            age_s = (t_ns - began) * 1e-9
            keep = (age_s == 0) | (age_s > _SAME_REFRESH * self.refresh_s)
            keep[-1:] |= age_s[-1:] > 0
        self._t_ns, self._energy_j = t_ns[keep], energy_j[keep]
        self._constant_s = _constant_s(self._t_ns, self._energy_j)
        self._max_gap_ns = _max_gap_ns(self.spacing_s)
        most_s = np.diff(self._t_ns) * 1e-9 + max(COUNTER_SLACK_S, 2 * (self.refresh_s or 0.0))
        self._jumps = np.diff(self._energy_j) > bounds.max_w * most_s

    def estimate(
        self,
        start_ns: int,
        end_ns: int,
        *,
        must_increase: bool = False,
        shape: "Power | None" = None,
    ) -> EnergyEstimate:
        """Return the counter's difference, interpolated at the edges.

        ``must_increase`` tells that the counter is that of a device that is never off, so that one
        which stands still is at fault. Between two readings the energy is divided as ``shape``,
        the power over the same time, says; without it, evenly, but not over a gap: what lies
        between the edge and the nearest reading is not covered then. How much it is in all is the
        counter's word alone.
        """
        t_ns, energy_j = self._t_ns, self._energy_j
        if len(t_ns) < 2 or end_ns <= start_ns:
            return _NO_ESTIMATE
        begin, end = max(start_ns, int(t_ns[0])), min(end_ns, int(t_ns[-1]))
        begin, end, silent_ns = self._trim_gaps(begin, end, shape)
        if end <= begin:
            return _NO_ESTIMATE
        first, last = self._readings_around(begin, end)
        coverage, silent = (ns / (end_ns - start_ns) for ns in (end - begin, silent_ns))
        if (np.diff(energy_j[first : last + 1]) < 0).any():
            return EnergyEstimate(None, coverage, "the counter went back")
        energy = self._at(end, shape) - self._at(begin, shape)
        # Of a window within such a time the counter would say that nothing was used.
        if must_increase and (energy == 0 or self._constant_s[first:last].max() > STALLED_S):
            return EnergyEstimate(None, coverage, "the counter stands still")
        fault = "the counter jumped ahead" if self._jumps[first:last].any() else None
        return EnergyEstimate(energy, coverage, fault, silent)

    def _readings_around(self, begin: int, end: int) -> tuple[int, int]:
        """Return the places of the readings around a stretch of time."""
        first = int(np.searchsorted(self._t_ns, begin, side="right")) - 1
        return first, int(np.searchsorted(self._t_ns, end, side="left"))

    def _trim_gaps(self, begin: int, end: int, shape: "Power | None") -> tuple[int, int, int]:
        """Return a stretch without gaps at its edges, and for how many ns it has gaps inside.

        A gap for which the power is known is none.
        """
        silent_ns = 0
        if end <= begin:
            return begin, end, silent_ns
        first, last = self._readings_around(begin, end)
        steps_ns = np.diff(self._t_ns[first : last + 1])
        for place in np.flatnonzero(steps_ns > self._max_gap_ns) + first:
            before_ns, after_ns = int(self._t_ns[place]), int(self._t_ns[place + 1])
            if shape is not None and shape.share(before_ns, after_ns, after_ns) is not None:
                continue
            if before_ns < begin:
                begin = after_ns
            elif after_ns > end:
                end = before_ns
            else:
                silent_ns += after_ns - before_ns
        return begin, end, silent_ns

    def _at(self, t_ns: int, shape: "Power | None") -> float:
        """Return the counter's value at a moment within its readings."""
        after = max(1, int(np.searchsorted(self._t_ns, t_ns, side="left")))
        before_ns, after_ns = int(self._t_ns[after - 1]), int(self._t_ns[after])
        low, high = float(self._energy_j[after - 1]), float(self._energy_j[after])
        share = shape.share(before_ns, t_ns, after_ns) if shape is not None else None
        if share is None:
            share = (t_ns - before_ns) / (after_ns - before_ns)
        return low + share * (high - low)

    @property
    def spacing_s(self) -> float | None:
        """Return the median time between readings that tell something new, in seconds."""
        return float(np.median(np.diff(self._t_ns))) * 1e-9 if len(self._t_ns) > 1 else None


def _constant_s(t_ns: Times, energy_j: Floats) -> Floats:
    """Return, for each reading but the last, for how long in all its value stays after it.

    That is the whole time of the standing still which a step from it to the next reading is part
    of, in seconds; 0 where the next reading has another value.
    """
    if len(t_ns) < 2:
        return np.zeros(0)
    is_still = np.diff(energy_j) == 0
    moves = np.flatnonzero(~is_still)
    began = np.concatenate([[0], moves + 1])
    ended = np.concatenate([moves, [len(t_ns) - 1]])
    run = np.searchsorted(moves, np.arange(len(is_still)), side="left")
    return np.where(is_still, (t_ns[ended] - t_ns[began])[run] * 1e-9, 0.0)


class Power:
    """Readings of power; between neighbours it is taken to change linearly.

    Parameters
    ----------
    t_ns, power_w
        Shape (n,): readings of one device, times ascending.
    bounds
        The power that the device can draw.
    """

    def __init__(self, t_ns: Times, power_w: Floats, bounds: Bounds = Bounds()) -> None:  # noqa: B008 - frozen
        self._t_ns, self._power_w, self._bounds = t_ns, power_w, bounds
        #: The median time between two readings, in seconds; None where there are not two.
        self.spacing_s = float(np.median(np.diff(t_ns))) * 1e-9 if len(t_ns) > 1 else None
        self._max_gap_ns = _max_gap_ns(self.spacing_s)

    def extended(self) -> "Power":
        """Return the same power, which stays for one period longer at the beginning and the end.

        So it speaks also for the moments between the last reading of a recording and the last of
        the counter, and likewise for the first.
        """
        if self.spacing_s is None:
            return self
        period_ns = round(self.spacing_s * 1e9)
        t_ns, power_w = self._t_ns, self._power_w
        return Power(
            np.concatenate([t_ns[:1] - period_ns, t_ns, t_ns[-1:] + period_ns]),
            np.concatenate([power_w[:1], power_w, power_w[-1:]]),
        )

    def share(self, start_ns: int, t_ns: int, end_ns: int) -> float | None:
        """Return which share of the energy between two moments falls before a third.

        None where the readings speak for less than ``MIN_COVERAGE`` of it; in what little they do
        not speak for, the power is taken to be the mean.
        """
        whole, part = self.estimate(start_ns, end_ns), self.estimate(start_ns, t_ns)
        if not whole.energy_j or whole.coverage < MIN_COVERAGE:
            return None
        all_j = whole.energy_j / whole.coverage
        unknown = (1 - part.coverage) * (t_ns - start_ns) / (end_ns - start_ns)
        return (part.energy_j or 0.0) / all_j + unknown

    def estimate(self, start_ns: int, end_ns: int) -> EnergyEstimate:
        """Return the integral by the trapezoidal rule, with exact edges, over what is covered."""
        if len(self._t_ns) < 2 or end_ns <= start_ns:
            return _NO_ESTIMATE
        first = max(0, int(np.searchsorted(self._t_ns, start_ns, side="right")) - 1)
        last = min(len(self._t_ns), int(np.searchsorted(self._t_ns, end_ns, side="left")) + 1)
        t_ns, power_w = self._t_ns[first:last] - start_ns, self._power_w[first:last]
        if len(t_ns) < 2:
            return _NO_ESTIMATE
        begin, end = (
            np.clip(t_ns[:-1], 0, end_ns - start_ns),
            np.clip(t_ns[1:], 0, end_ns - start_ns),
        )
        use = (end > begin) & (np.diff(t_ns) <= self._max_gap_ns)
        if not use.any():
            return _NO_ESTIMATE
        ends_w = np.interp(begin, t_ns, power_w), np.interp(end, t_ns, power_w)
        pieces = (end - begin) * 1e-9 * (ends_w[0] + ends_w[1]) / 2
        coverage = float((end - begin)[use].sum()) / (end_ns - start_ns)
        read_w = np.concatenate([power_w[:-1][use], power_w[1:][use]])
        fault = self._bounds.fault("a power reading is", float(read_w.min()), float(read_w.max()))
        return EnergyEstimate(float(pieces[use].sum()), coverage, fault)


def _max_gap_ns(spacing_s: float | None) -> float:
    """Return the longest time between two readings that is no gap, in ns."""
    return max(MAX_GAP_S, 5 * (spacing_s or 0.0)) * 1e9


@dataclass(frozen=True)
class DeviceEnergy:
    """One device's energy in one window: both ways, the one used, and how far to trust it."""

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
    whole = counter.coverage >= min(MIN_COVERAGE, integral.coverage)
    if counter.is_valid or integral.is_valid:
        by_counter = counter.is_valid and (whole or not integral.is_valid)
    else:
        by_counter = integral.energy_j is None
    used = counter if by_counter else integral
    faults = "; ".join(part.fault for part in (counter, integral) if part.fault)
    if used.energy_j is None:
        return DeviceEnergy(None, None, None, "none", 0.0, "unavailable", faults or None)
    verdict: Verdict = "ok"
    reason: str | None = None
    if faults:
        verdict, reason = "suspect" if used.is_valid else "implausible", faults
    elif by_counter and resolution_s is not None and window_s < resolution_s:
        told = f"the {resolution_s:.3g} s that the counter and the power between resolve"
        verdict, reason = "suspect", f"the window is shorter than {told}"
    elif not by_counter and power_spacing_s is not None and window_s < power_spacing_s:
        verdict, reason = "suspect", "the window is shorter than the time between power readings"
    elif (gap := _relative_difference(counter, integral)) is not None and gap > MAX_DIFFERENCE:
        verdict, reason = "suspect", f"counter and integral differ by {gap:.0%}"
    elif used.silent > 1 - MIN_COVERAGE:
        verdict, reason = "suspect", f"there are no readings for {used.silent:.0%} of the window"
    if used.coverage < MIN_COVERAGE and verdict != "implausible":
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


def _scaled_to_window(part: EnergyEstimate) -> EnergyEstimate:
    """Return a part that covers nearly all of a window as the whole, at its own mean power.

    To count what is not covered as nothing would be a bias to one side.
    """
    if part.energy_j is None or not MIN_COVERAGE <= part.coverage < 1:
        return part
    return dataclasses.replace(part, energy_j=part.energy_j / part.coverage)


def _relative_difference(one: EnergyEstimate, other: EnergyEstimate) -> float | None:
    """Return how far two energies of the whole window differ, relative to the greater."""
    if one.energy_j is None or other.energy_j is None:
        return None
    if min(one.coverage, other.coverage) < MIN_COVERAGE:
        return None
    greater = max(one.energy_j, other.energy_j)
    return abs(one.energy_j - other.energy_j) / greater if greater > 0 else 0.0
