"""Physical bounds of power and energy readings. Readings outside them are never ``ok``.

The bounds apply to measured devices, not to estimates and simulations.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

#: A device draws at most this multiple of its maximum power limit. Limits apply to means over tens
#: of milliseconds; single readings exceed the limit by up to a third.
MAX_POWER_FACTOR = 1.5
#: No single device draws more, in watts: above 1.5 times any GPU, package, socket's memory, module
#: or node sold so far (GB300: 1400 W; Xeon 6 and EPYC 9005: 500 W; 24 DIMMs: 400 W; GB200 with one
#: Grace and two GPUs: 2700 W; DGX B300: 14 kW).
MAX_DEVICE_W: Mapping[str, float] = {
    "gpu": 3000.0, "cpu": 2000.0, "dram": 1000.0, "module": 6000.0, "node": 30_000.0,
}  # fmt: skip
#: No device that is on draws less, in watts: idle GPUs draw 2 W or more, idle packages 0.3 W, and
#: the smallest computers 1 W. A node's sensor that is not connected reads 0.
MIN_DEVICE_W: Mapping[str, float] = {"gpu": 1.0, "cpu": 0.1, "module": 1.0, "node": 1.0}
#: A GPU that is in use for a quarter of a window or more draws at least 2 % of its maximum limit;
#: even idle GPUs do (RTX 4090: 10 of 600 W; T4: 9 of 70 W; H100: 70 of 700 W).
BUSY_UTIL, MIN_BUSY_SHARE = 0.25, 0.02
#: A counter may increase by so many seconds' worth of maximum power at once: counters refresh at
#: least ten times a second, and a reading may be late.
COUNTER_SLACK_S = 0.5
#: Power is stuck if so many readings over so many seconds are identical while utilisation changes
#: by half of its range, or the SM clock by half of its value and 500 MHz. The change is between
#: the 10th and the 90th percentile, so that short dips at a binding limit do not count. At a limit,
#: changes of the clock do not count: they keep the power constant.
STUCK_READINGS, STUCK_S, STUCK_UTIL, STUCK_CLOCK_SHARE, STUCK_CLOCK_MHZ = 20, 3.0, 0.5, 0.5, 500.0
_SAME_W = 1e-6  # means of identical readings differ by rounding
_AT_LIMIT = 0.05
#: If timestamps go back by more than this, a clock was set back.
CLOCK_BACK_S = 0.001

#: Devices of a kind that serve one GPU, or one node without a GPU, at most: eight sockets.
_MOST_PER_GPU = {"cpu": 8, "dram": 8, "module": 8}

Floats = npt.NDArray[np.float64]
Times = npt.NDArray[np.int64]
Series = tuple[Times, Floats]


def power_fault(
    what: str, kind: str, power_w: float, gpus: int = 1, nodes: int = 1, units: str = "{}W"
) -> str | None:
    """Return why a power is more than all devices of a kind can draw. ``power_w`` is the sum over
    the devices of some GPUs and nodes, and ``what`` is said to have it. ``units`` may have been
    taken for the right one, with a place for its prefix."""
    count = gpus if kind == "gpu" else max(gpus, nodes)
    max_w = MAX_DEVICE_W[kind] * count * _MOST_PER_GPU.get(kind, 1)
    if not power_w > max_w:
        return None
    prefix = next((p for p, factor in (("m", 1e-3), ("u", 1e-6)) if power_w * factor <= max_w), "?")
    devices = f"{count} {kind}{'s' * (count > 1)}"
    likely = units.replace("{}", prefix)
    most = f"{devices} can draw at most {max_w:.4g} W"
    return f"{what} is {power_w:.4g} W, but {most}; is it in {likely}?"


def energy_fault(
    energies_j: Mapping[str, Any], duration_s: float | None, gpus: int, nodes: int
) -> str | None:
    for kind in MAX_DEVICE_W if duration_s else ():
        if (energy_j := energies_j.get(f"{kind}_energy_j")) is not None and duration_s:
            what = f"{kind}_energy_j, {energy_j:.4g} J in {duration_s:.4g} s,"
            power_w = energy_j / duration_s
            fault = power_fault(what, kind, power_w, gpus, nodes, "{}J, or the power in {}W")
            if fault is not None:
                return fault
    return None


@dataclass(frozen=True)
class Bounds:
    min_w: float = 0.0
    max_w: float = math.inf
    min_busy_w: float = 0.0  # while it is busy

    @classmethod
    def for_device(cls, kind: str, facts: Mapping[str, Any]) -> "Bounds":
        highest_w, lowest_w = MAX_DEVICE_W.get(kind, math.inf), MIN_DEVICE_W.get(kind, 0.0)
        limit_w = facts.get("max_power_limit_w")
        if not isinstance(limit_w, int | float) or not 0 < limit_w < math.inf:
            return cls(lowest_w, highest_w, lowest_w)
        max_w = min(highest_w, MAX_POWER_FACTOR * limit_w)
        return cls(lowest_w, max_w, max(lowest_w, min(MIN_BUSY_SHARE * limit_w, max_w)))

    def fault(
        self, what: str, lowest_w: float, highest_w: float, *, busy: bool = False
    ) -> str | None:
        if not highest_w <= self.max_w:
            return f"{what} {highest_w:.4g} W, above the {self.max_w:.4g} W that are possible"
        min_w = self.min_busy_w if busy else self.min_w
        if lowest_w < min_w:
            return f"{what} {lowest_w:.4g} W, below the {min_w:.4g} W that are possible"
        return None


class Intervals:
    def __init__(self, start_ns: Times, end_ns: Times) -> None:
        self._start_ns, self._end_ns = start_ns, end_ns

    def overlaps(self, start_ns: int, end_ns: int) -> bool:
        return bool(((self._start_ns < end_ns) & (self._end_ns > start_ns)).any())


def clock_setbacks(t_ns: Times) -> Intervals:
    """Return the times that occur twice because a clock was set back; readings in file order. Each
    is from the reading before to the one after, as values between are interpolated wrongly."""
    newest = np.maximum.accumulate(t_ns) if len(t_ns) else t_ns
    is_back = newest - t_ns > CLOCK_BACK_S * 1e9
    ordered = np.unique(t_ns)
    before = np.searchsorted(ordered, t_ns[is_back]) - 1
    after = np.searchsorted(ordered, newest[is_back], side="right")
    return Intervals(ordered[np.maximum(before, 0)], ordered[np.minimum(after, len(ordered) - 1)])


def stuck_power(
    power: Series, util: Series, clock: Series, limit_w: float | None, mean_s: float
) -> Intervals:
    """Return where power (W) does not change while utilisation (0 to 1) or the clock (MHz) does.
    The device averages its power over ``mean_s``; the load is averaged over twice that."""
    t_ns, power_w = power
    changes = np.flatnonzero(np.abs(np.diff(power_w)) > _SAME_W) + 1
    first = np.concatenate([[0], changes]) if len(t_ns) else changes
    last = np.concatenate([changes, [len(t_ns)]]) - 1 if len(t_ns) else changes
    long_ns = (STUCK_S + 10 * mean_s) * 1e9
    is_long = (last - first + 1 >= STUCK_READINGS) & (t_ns[last] - t_ns[first] >= long_ns)
    stuck = []
    for begin, end in zip(first[is_long], last[is_long], strict=True):
        interval = int(t_ns[begin]), int(t_ns[end])
        low, high = _spread(util, *interval, mean_s)
        is_changing = high - low >= STUCK_UTIL and high <= 1
        if limit_w is None or abs(power_w[begin] - limit_w) > _AT_LIMIT * limit_w:
            low, high = _spread(clock, *interval, mean_s)
            is_changing |= high - low >= max(STUCK_CLOCK_MHZ, STUCK_CLOCK_SHARE * high)
        if is_changing:
            stuck.append(interval)
    edges = np.array(stuck, dtype=np.int64).reshape(-1, 2)
    return Intervals(edges[:, 0], edges[:, 1])


def _spread(series: Series, start_ns: int, end_ns: int, mean_s: float) -> tuple[float, float]:
    """Return the 10th and 90th percentile of a series in an interval; (0, 0) of too few."""
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
