"""What power and energy readings can be physically; what lies outside is never ``ok``.

The bounds apply to measured devices. Estimates and simulations have the power of their model.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

#: A device draws at most this multiple of its maximum power limit. Limits are enforced on means
#: over tens of milliseconds; readings of single boards exceed the limit by up to a third.
MAX_POWER_FACTOR = 1.5
#: No single device draws more, in watts: above 1.5 times any board, package or socket's memory
#: sold so far (GB300: 1400 W; Xeon 6 and EPYC 9005: 500 W; 24 DIMMs: 400 W).
MAX_DEVICE_W: Mapping[str, float] = {"gpu": 3000.0, "cpu": 2000.0, "dram": 1000.0}
#: No device that is on draws less, in watts: idle GPUs draw 2 W or more, idle packages 0.3 W.
MIN_DEVICE_W: Mapping[str, float] = {"gpu": 1.0, "cpu": 0.1}
#: A GPU that is in use for a quarter of a window or more draws at least 2 % of its maximum limit;
#: even idle boards do (RTX 4090: 10 of 600 W; T4: 9 of 70 W; H100: 70 of 700 W).
BUSY_UTIL, MIN_BUSY_SHARE = 0.25, 0.02
#: A counter may gain so many seconds' worth of maximum power at once: counters refresh at least
#: ten times a second, and a reading may be late.
COUNTER_SLACK_S = 0.5
#: Power is stuck when so many readings over so many seconds are identical while utilisation
#: moves by half of its range or the SM clock by half of its value and 500 MHz. The spread is that
#: between the 10th and 90th percentile: short dips at a binding limit do not count. At a limit the
#: clock moves so that power stays, and does not count either.
STUCK_READINGS, STUCK_S, STUCK_UTIL, STUCK_CLOCK_SHARE, STUCK_CLOCK_MHZ = 20, 3.0, 0.5, 0.5, 500.0
_SAME_W = 1e-6  # means of identical readings differ by rounding
_AT_LIMIT = 0.05
#: Timestamps that go back by more than this are a clock that was set back.
CLOCK_BACK_S = 0.001

Floats = npt.NDArray[np.float64]
Times = npt.NDArray[np.int64]
Series = tuple[Times, Floats]


@dataclass(frozen=True)
class Bounds:
    """The least and the greatest power that a device can draw, in watts."""

    min_w: float = 0.0
    max_w: float = math.inf
    min_busy_w: float = 0.0  # while it is in use

    @classmethod
    def of(cls, kind: str, facts: Mapping[str, Any]) -> "Bounds":
        """Return the bounds of a measured device of a kind, from its maximum limit if known."""
        most_w, least_w = MAX_DEVICE_W.get(kind, math.inf), MIN_DEVICE_W.get(kind, 0.0)
        limit_w = facts.get("max_power_limit_w")
        if not isinstance(limit_w, int | float) or not 0 < limit_w < math.inf:
            return cls(least_w, most_w, least_w)
        max_w = min(most_w, MAX_POWER_FACTOR * limit_w)
        return cls(least_w, max_w, max(least_w, min(MIN_BUSY_SHARE * limit_w, max_w)))

    def fault(self, what: str, least_w: float, most_w: float, *, busy: bool = False) -> str | None:
        """Return why powers between two values are implausible, or None."""
        if not most_w <= self.max_w:
            return f"{what} {most_w:.4g} W, above the {self.max_w:.4g} W that are possible"
        min_w = self.min_busy_w if busy else self.min_w
        if least_w < min_w:
            return f"{what} {least_w:.4g} W, below the {min_w:.4g} W that are possible"
        return None


class Intervals:
    """Stretches of time for which something holds; ends included."""

    def __init__(self, start_ns: Times, end_ns: Times) -> None:
        self._start_ns, self._end_ns = start_ns, end_ns

    def overlaps(self, start_ns: int, end_ns: int) -> bool:
        """Say whether a window shares time with any of them."""
        return bool(((self._start_ns < end_ns) & (self._end_ns > start_ns)).any())


def clock_setbacks(t_ns: Times) -> Intervals:
    """Return the times that occur twice because a clock was set back; readings in file order.

    From the reading before to the one after: in between, values are interpolated with wrong ones.
    """
    newest = np.maximum.accumulate(t_ns) if len(t_ns) else t_ns
    is_back = newest - t_ns > CLOCK_BACK_S * 1e9
    ordered = np.unique(t_ns)
    before = np.searchsorted(ordered, t_ns[is_back]) - 1
    after = np.searchsorted(ordered, newest[is_back], side="right")
    return Intervals(ordered[np.maximum(before, 0)], ordered[np.minimum(after, len(ordered) - 1)])


def stuck(
    power: Series, util: Series, clock: Series, limit_w: float | None, mean_s: float
) -> Intervals:
    """Return the times in which power stays the same while the load changes.

    Parameters
    ----------
    power, util, clock
        Times in ascending order, and values (W, 0 to 1, MHz).
    limit_w
        The enforced power limit, where known.
    mean_s
        Over how long the device averages its power; the load is averaged over twice that.
    """
    t_ns, power_w = power
    changes = np.flatnonzero(np.abs(np.diff(power_w)) > _SAME_W) + 1
    first = np.concatenate([[0], changes]) if len(t_ns) else changes
    last = np.concatenate([changes, [len(t_ns)]]) - 1 if len(t_ns) else changes
    long_ns = (STUCK_S + 10 * mean_s) * 1e9
    is_long = (last - first + 1 >= STUCK_READINGS) & (t_ns[last] - t_ns[first] >= long_ns)
    found = []
    for begin, end in zip(first[is_long], last[is_long], strict=True):
        span = int(t_ns[begin]), int(t_ns[end])
        low, high = _spread(util, *span, mean_s)
        moves = high - low >= STUCK_UTIL and high <= 1
        if limit_w is None or abs(power_w[begin] - limit_w) > _AT_LIMIT * limit_w:
            low, high = _spread(clock, *span, mean_s)
            moves |= high - low >= max(STUCK_CLOCK_MHZ, STUCK_CLOCK_SHARE * high)
        if moves:
            found.append(span)
    edges = np.array(found, dtype=np.int64).reshape(-1, 2)
    return Intervals(edges[:, 0], edges[:, 1])


def _spread(series: Series, start_ns: int, end_ns: int, mean_s: float) -> tuple[float, float]:
    """Return the 10th and 90th percentile of a series between two moments; (0, 0) of too few."""
    t_ns, values = series
    first, last = np.searchsorted(t_ns, [start_ns, end_ns + 1])
    t_ns, values = t_ns[first:last], values[first:last]
    if mean_s and len(t_ns):
        block = (t_ns - start_ns) // round(2e9 * mean_s)
        _, place = np.unique(block, return_inverse=True)
        values = np.bincount(place, values) / np.bincount(place)
    if len(values) < 3:
        return 0.0, 0.0
    low, high = np.quantile(values, [0.1, 0.9])
    return float(low), float(high)
