"""The samples of one device of a host, and its energy in a window."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wattlaw.common.scopes import is_shared_with_jobs
from wattlaw.measure.telemetry.device_energy import (
    AVERAGE_S,
    Counter,
    DeviceEnergy,
    EnergyEstimate,
    Power,
    reconcile,
)
from wattlaw.measure.telemetry.plausibility import BUSY_UTIL, Bounds, clock_setbacks, stuck_power

#: For each kind of device, only the best kind of source of a host counts.
POWER_SOURCES = ("measured", "simulated", "estimated")
#: Sources of power that the device averages.
_AVERAGED = ("average", "usage")

DeviceFacts = Mapping[str, Any]


class DeviceSamples:
    def __init__(self, samples: pa.Table, facts: DeviceFacts) -> None:
        self._setbacks = [
            clock_setbacks(samples.filter(pc.field(column).is_valid())["t_ns"].to_numpy())
            for column in ("power_w", "energy_j")
        ]
        self._samples = samples.sort_by("t_ns")
        self._t_ns = self._samples["t_ns"].to_numpy()
        self.id: str = self._samples["device"][0].as_py()
        resolution_s = _seconds(facts.get("resolution_s")) or 0.0
        self._refresh_s = _seconds(facts.get("counter_refresh_s")) or resolution_s or None
        average_s = AVERAGE_S if facts.get("power") in _AVERAGED else 0.0
        self._average_s = max(average_s, resolution_s)
        self.facts = facts
        self.kind: str = self._samples["kind"][0].as_py()
        sources = set(pc.unique(self._samples["power_source"]).to_pylist())
        self.power_source = next((name for name in POWER_SOURCES if name in sources), None)
        is_measured = self.power_source == "measured"
        self._bounds = Bounds.for_device(self.kind, facts) if is_measured else Bounds()
        power, energy = self._series("power_w"), self._series("energy_j")
        self._counter = Counter(*energy, self._bounds)
        self._power = Power(*power, self._bounds)
        self._shape = self._power.extended()
        load = self._series("sm_util"), self._series("sm_clock_mhz")
        limits_w = self._series("power_limit_w")[1]
        limit_w = float(np.median(limits_w)) if len(limits_w) else None
        is_gpu = is_measured and self.kind == "gpu"
        self._stuck = stuck_power(power, *load, limit_w, self._average_s) if is_gpu else None

    def _series(self, column: str) -> tuple[Any, Any]:
        """Return the times and values of a column; of two at one time, the later one counts."""
        known = self._samples.filter(pc.field(column).is_valid())
        t_ns, values = known["t_ns"].to_numpy(), known[column].to_numpy()
        is_last = np.append(np.diff(t_ns) > 0, True)[: len(t_ns)]
        return t_ns[is_last], values[is_last]

    def energy(self, start_ns: int, end_ns: int) -> DeviceEnergy:
        measured = self.power_source == "measured"
        shape = self._shape if measured else None
        counter = self._counter.estimate(start_ns, end_ns, must_increase=measured, shape=shape)
        # An estimate has no independent power to compare its counter with.
        estimated = self.power_source == "estimated"
        power = EnergyEstimate(None, 0.0) if estimated else self._power.estimate(start_ns, end_ns)
        if power.is_valid and self._stuck is not None and self._stuck.overlaps(start_ns, end_ns):
            fault = "power stays the same while the load changes"
            power = dataclasses.replace(power, fault=fault)
        spacing_s, window_s = self._power.spacing_s, (end_ns - start_ns) * 1e-9
        util = self.values_in("sm_util", start_ns, end_ns)
        busy = bool(len(util)) and BUSY_UTIL <= float(util.mean()) <= 1
        energy = reconcile(
            counter.checked("counter", window_s, self._bounds, busy=busy),
            power.checked("integral", window_s, self._bounds, busy=busy),
            window_s,
            self._resolution_s() if measured else None,
            max(spacing_s, self._average_s) if measured and spacing_s is not None else None,
        )
        caveat = self._caveat(start_ns, end_ns)
        if is_shared_with_jobs(self.kind, self.facts) and energy.verdict in ("ok", "suspect"):
            return dataclasses.replace(energy, verdict="partial", reason=caveat)
        if caveat is not None and energy.verdict == "ok":
            return dataclasses.replace(energy, verdict="suspect", reason=caveat)
        return energy

    def _caveat(self, start_ns: int, end_ns: int) -> str | None:
        """Return why an energy without a fault may still be wrong."""
        if self.facts.get("is_shared"):
            return f"the {self.kind} is shared: its energy includes that of other users"
        if any(setbacks.overlaps(start_ns, end_ns) for setbacks in self._setbacks):
            return "the clock was set back, so that some times occur twice"
        return None

    def _resolution_s(self) -> float | None:
        """Return the shortest window whose energy the counter resolves: its refresh period. If it
        was read more seldom, power between its readings divides its energy; else their spacing."""
        spacing_s, power_s = self._counter.spacing_s, self._power.spacing_s
        if power_s is not None:
            power_s = max(power_s, self._average_s)
        refresh_s = self._refresh_s or self._counter.refresh_s or spacing_s
        if spacing_s is None or refresh_s is None:
            return refresh_s
        if power_s is not None and power_s < spacing_s:
            return max(self._refresh_s or 0.0, power_s)
        return max(refresh_s, spacing_s)

    def slow_mean(self, column: str, start_ns: int, end_ns: int) -> float | None:
        """Return the mean of a slowly changing column in a window, else interpolated around it."""
        values = self.values_in(column, start_ns, end_ns)
        if len(values):
            return float(values.mean())
        t_ns, values = self._series(column)
        middle = (start_ns + end_ns) // 2
        if not len(t_ns) or not t_ns[0] <= middle <= t_ns[-1]:
            return None
        return float(np.interp(0, t_ns - middle, values))

    def increase(self, column: str, start_ns: int, end_ns: int) -> float | None:
        """Return the increase of a counter in a window, None if it does not cover the window."""
        t_ns, values = self._series(column)
        if len(t_ns) < 2 or t_ns[0] > start_ns or t_ns[-1] < end_ns:
            return None
        begin, end = np.interp([0, end_ns - start_ns], t_ns - start_ns, values)
        return float(end - begin) if end >= begin else None

    def mean_cores(self, start_ns: int, end_ns: int) -> float | None:
        """Return the mean of busy cores; each sample is the mean since the previous one."""
        cores = self._samples["cpu_cores"].to_numpy()
        since_ns = np.concatenate([self._t_ns[:1], self._t_ns[:-1]])
        overlap_ns = np.minimum(self._t_ns, end_ns) - np.maximum(since_ns, start_ns)
        overlap_ns = np.where(np.isnan(cores), 0, np.clip(overlap_ns, 0, None))
        if not overlap_ns.any():
            return None
        return float((np.nan_to_num(cores) * overlap_ns).sum() / overlap_ns.sum())

    def values_in(self, column: str, start_ns: int, end_ns: int) -> Any:
        first, last = np.searchsorted(self._t_ns, [start_ns, end_ns + 1])
        values = self._samples[column].slice(first, last - first).drop_null()
        return values.to_numpy()


def _seconds(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 < value < math.inf else None
