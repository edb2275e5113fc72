"""The energy and utilisation of windows: the samples of a host's devices, each counted once.

A window without any energy has the source ``none`` and the verdict ``unavailable``. What a part of
the devices does not know makes a sum ``partial``, never silently smaller.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wattlaw.devices.meter import Facts
from wattlaw.store.record import VERDICTS
from wattlaw.store.schema import WINDOW_ENERGY
from wattlaw.telemetry.device_energy import (
    MIN_COVERAGE,
    Counter,
    DeviceEnergy,
    EnergyEstimate,
    Power,
    Verdict,
    reconcile,
)
from wattlaw.telemetry.plausibility import BUSY_UTIL, Bounds, set_back, stuck

_SOURCES = ("counter", "integral", "simulated", "estimated", "none")
#: The best kind of source that a host has for a kind of device counts, alone.
_POWER_SOURCES = ("measured", "simulated", "estimated")
_KINDS = ("gpu", "cpu", "dram")
#: Power that the device averages before it tells it, over 1 s on most boards.
_AVERAGED, _AVERAGE_S = ("average", "usage"), 1.0
#: Values from here on are a driver's or a file's "not available": INT_MAX and UINT_MAX milliwatts
#: (2.1 and 4.3 MW), more joules than a GPU uses in 10,000 years, no shares and no clocks.
_SENTINELS: Mapping[str, float] = {
    "power_w": 2_147_483.0, "energy_j": 1e15, "sm_util": 1e3, "mem_util": 1e3, "sm_clock_mhz": 1e6,
}  # fmt: skip
#: Times from here on are none: year 2116.
_LATEST_NS = 2**62


def energy_of_windows(
    windows: pa.Table,
    samples: pa.Table,
    facts: Mapping[tuple[str, str], Facts] | None = None,
) -> pa.Table:
    """Return the ``WINDOW_ENERGY`` columns, one row per window.

    Parameters
    ----------
    windows
        With the columns of ``store.schema.WINDOWS``.
    samples
        With the columns of ``store.schema.SAMPLES``; each window is met with those of its host.
    facts
        By host and device what its meter found out: ``counter_refresh_s``, ``power`` (where it
        comes from), ``max_power_limit_w``, ``is_shared``, and ``failed`` of one that could not be
        read at all.
    """
    known = facts or {}
    samples = _readable(samples)
    hosts = {host: _Host(samples, host, known) for host in pc.unique(windows["host"]).to_pylist()}
    rows = [
        hosts[window["host"]].window(*_edges(window["start_ns"], window["duration_s"]))
        for window in windows.to_pylist()
    ]
    return pa.Table.from_pylist(rows, schema=WINDOW_ENERGY)


def _edges(start_ns: int | None, duration_s: float | None) -> tuple[int, int]:
    """Return where a window begins and ends; (0, 0) of one whose times are no times."""
    if start_ns is None or duration_s is None or not 0 <= duration_s < _LATEST_NS * 1e-9:
        return 0, 0
    end_ns = start_ns + round(duration_s * 1e9)
    return (start_ns, end_ns) if 0 <= start_ns <= end_ns < _LATEST_NS else (0, 0)


def _readable(samples: pa.Table) -> pa.Table:
    """Return the samples that have a device and a time, without values that are no numbers."""
    t_ns = pc.field("t_ns")
    named = pc.field("device").is_valid() & pc.field("kind").is_valid()
    samples = samples.filter(named & (t_ns >= 0) & (t_ns < _LATEST_NS))
    for place, field in enumerate(samples.schema):
        if pa.types.is_floating(field.type):
            column, most = samples.column(place), _SENTINELS.get(field.name, math.inf)
            is_one = pc.and_(pc.greater_equal(column, 0.0), pc.less(column, most))
            kept = pc.if_else(is_one, column, pa.scalar(None, field.type))
            samples = samples.set_column(place, field, kept)
    return samples


class _Device:
    """The samples of one device in order of time."""

    def __init__(self, samples: pa.Table, facts: Facts) -> None:
        back = [set_back(samples.filter(pc.field(column).is_valid())["t_ns"].to_numpy())
                for column in ("power_w", "energy_j")]  # fmt: skip
        self._samples = samples.sort_by("t_ns")
        self._t_ns = self._samples["t_ns"].to_numpy()
        self.id: str = self._samples["device"][0].as_py()
        refresh_s = facts.get("counter_refresh_s")
        self._refresh_s = refresh_s if isinstance(refresh_s, float) else None
        self._average_s = _AVERAGE_S if facts.get("power") in _AVERAGED else 0.0
        self._is_shared = bool(facts.get("is_shared"))
        self.kind: str = self._samples["kind"][0].as_py()
        said = set(pc.unique(self._samples["power_source"]).to_pylist())
        self.power_source = next((name for name in _POWER_SOURCES if name in said), None)
        is_measured = self.power_source == "measured"
        self._bounds = Bounds.of(self.kind, facts) if is_measured else Bounds()
        power, energy = self._series("power_w"), self._series("energy_j")
        self._counter = Counter(*energy, self._bounds)
        self._power = Power(*power, self._bounds)
        self._shape = self._power.extended()
        load = self._series("sm_util"), self._series("sm_clock_mhz")
        limits_w = self._series("power_limit_w")[1]
        limit_w = float(np.median(limits_w)) if len(limits_w) else None
        is_gpu = is_measured and self.kind == "gpu"
        self._stuck = stuck(power, *load, limit_w, self._average_s) if is_gpu else None
        self._back = back

    def _series(self, column: str) -> tuple[Any, Any]:
        """Return times, each once and in order, and values of a column; the later of two counts."""
        known = self._samples.filter(pc.field(column).is_valid())
        t_ns, values = known["t_ns"].to_numpy(), known[column].to_numpy()
        is_last = np.append(np.diff(t_ns) > 0, True)[: len(t_ns)]
        return t_ns[is_last], values[is_last]

    def energy(self, start_ns: int, end_ns: int) -> DeviceEnergy:
        """Return the energy of a window."""
        measured = self.power_source == "measured"
        shape = self._shape if measured else None
        counter = self._counter.between(start_ns, end_ns, must_move=measured, shape=shape)
        # An estimate has no power of its own with which its counter could be compared.
        estimated = self.power_source == "estimated"
        power = EnergyEstimate(None, 0.0) if estimated else self._power.between(start_ns, end_ns)
        if power.is_sound and self._stuck is not None and self._stuck.meet(start_ns, end_ns):
            told = "power stays the same while the load changes"
            power = dataclasses.replace(power, fault=told)
        spacing_s, window_s = self._power.spacing_s, (end_ns - start_ns) * 1e-9
        util = self.inside("sm_util", start_ns, end_ns)
        busy = bool(len(util)) and BUSY_UTIL <= float(util.mean()) <= 1
        found = reconcile(
            counter.checked("counter", window_s, self._bounds, busy=busy),
            power.checked("integral", window_s, self._bounds, busy=busy),
            window_s,
            self._resolution_s() if measured else None,
            max(spacing_s, self._average_s) if measured and spacing_s is not None else None,
        )
        doubt = self._doubt(start_ns, end_ns)
        if doubt is not None and found.verdict == "ok":
            return dataclasses.replace(found, verdict="suspect", reason=doubt)
        return found

    def _doubt(self, start_ns: int, end_ns: int) -> str | None:
        """Return why an energy without a fault may be wrong all the same."""
        if self._is_shared:
            return "the board is shared (MIG), and its energy is that of all who use it"
        if any(spans.meet(start_ns, end_ns) for spans in self._back):
            return "the clock was set back, so that some times occur twice"
        return None

    def _resolution_s(self) -> float | None:
        """Return the shortest window of which the counter says something of its own.

        That is its refresh period. Where it was read more seldom, the power in between has told
        how its energy was spread; without such power it is the time between readings.
        """
        spacing_s, power_s = self._counter.spacing_s, self._power.spacing_s
        if power_s is not None:
            power_s = max(power_s, self._average_s)
        known = self._refresh_s or self._counter.refresh_s or spacing_s
        if spacing_s is None or known is None:
            return known
        if power_s is not None and power_s < spacing_s:
            return max(self._refresh_s or 0.0, power_s)
        return max(known, spacing_s)

    def at(self, column: str, start_ns: int, end_ns: int) -> float | None:
        """Return the mean of a slowly changing column: inside a window, or on both sides of it."""
        inside = self.inside(column, start_ns, end_ns)
        if len(inside):
            return float(inside.mean())
        t_ns, values = self._series(column)
        middle = (start_ns + end_ns) // 2
        if not len(t_ns) or not t_ns[0] <= middle <= t_ns[-1]:
            return None
        return float(np.interp(0, t_ns - middle, values))

    def gained(self, column: str, start_ns: int, end_ns: int) -> float | None:
        """Return by how much a counter grew in a window, None where it does not tell of it all."""
        t_ns, values = self._series(column)
        if len(t_ns) < 2 or t_ns[0] > start_ns or t_ns[-1] < end_ns:
            return None
        begin, end = np.interp([0, end_ns - start_ns], t_ns - start_ns, values)
        return float(end - begin) if end >= begin else None

    def mean_cores(self, start_ns: int, end_ns: int) -> float | None:
        """Return the mean of busy cores; each sample speaks for the time since the one before."""
        cores = self._samples["cpu_cores"].to_numpy()
        since_ns = np.concatenate([self._t_ns[:1], self._t_ns[:-1]])
        shared_ns = np.minimum(self._t_ns, end_ns) - np.maximum(since_ns, start_ns)
        shared_ns = np.where(np.isnan(cores), 0, np.clip(shared_ns, 0, None))
        if not shared_ns.any():
            return None
        return float((np.nan_to_num(cores) * shared_ns).sum() / shared_ns.sum())

    def inside(self, column: str, start_ns: int, end_ns: int) -> Any:
        """Return the known values of a column within a window."""
        first, last = np.searchsorted(self._t_ns, [start_ns, end_ns + 1])
        values = self._samples[column].slice(first, last - first).drop_null()
        return values.to_numpy()


class _Host:
    """The devices of one host."""

    def __init__(
        self, samples: pa.Table, host: str, facts: Mapping[tuple[str, str], Facts]
    ) -> None:
        mine = samples.filter(pc.field("host") == host)
        self._devices = [
            _Device(mine.filter(pc.field("device") == device), facts.get((host, device), {}))
            for device in pc.unique(mine["device"]).to_pylist()
        ]
        #: Why devices that are ours have no samples at all.
        self._lacking = [
            f"{device}: {told['failed']}"
            for (where, device), told in facts.items()
            if where == host and told.get("failed")
        ]

    def window(self, start_ns: int, end_ns: int) -> dict[str, Any]:
        row: dict[str, Any] = {}
        sources: list[str] = []
        verdicts: list[Verdict] = []
        reasons = list(self._lacking)
        if reasons:
            verdicts.append("unavailable")
        for kind in _KINDS:
            used = self._best(kind)
            found = [device.energy(start_ns, end_ns) for device in used]
            known = [one for one in found if one.energy_j is not None]
            if not used:
                continue
            verdicts += [one.verdict for one in found]
            reasons += [
                f"{d.id}: {one.reason}" for d, one in zip(used, found, strict=True) if one.reason
            ]
            if not known:
                continue
            row[f"{kind}_energy_j"] = _sum(one.energy_j for one in known)
            sources += [
                _source(device, one)
                for device, one in zip(used, found, strict=True)
                if one.energy_j is not None
            ]
            if kind == "gpu":
                row |= _both_ways(found) | {
                    "gpu_power_mean_w": _mean_power(known, end_ns - start_ns)
                }
        return {
            **row,
            **self._use(start_ns, end_ns),
            "energy_source": max(sources, key=_SOURCES.index, default="none"),
            "energy_verdict": _verdict(verdicts, known=bool(sources)),
            "energy_reason": "; ".join(reasons) or None,
        }

    def _best(self, kind: str) -> list[_Device]:
        """Return the devices of a kind that count: an estimate is never added to a measurement."""
        mine = [device for device in self._devices if device.kind == kind]
        for source in _POWER_SOURCES:
            used = [device for device in mine if device.power_source == source]
            if used:
                return used
        return []

    def _use(self, start_ns: int, end_ns: int) -> dict[str, Any]:
        """Return how the host's devices were used; what none of them tells is left out."""
        row: dict[str, Any] = {}
        for column in ("sm_util", "mem_util", "sm_clock_mhz"):
            values = [d.inside(column, start_ns, end_ns) for d in self._devices if d.kind == "gpu"]
            told = [one for one in values if len(one)]
            if not told:
                continue
            samples = np.concatenate(told)
            mean = float(samples.mean())
            name = column.removesuffix("_mhz")
            unit = "_mhz" if column.endswith("_mhz") else ""
            row[f"{name}_mean{unit}"] = mean
            if not unit and mean > 0:  # over all samples of all GPUs: GPUs that differ count
                row[f"{name}_cv"] = float(samples.std()) / mean
        gpus = [device for device in self._devices if device.kind == "gpu"]
        row |= _mean("power_limit_mean_w", (d.at("power_limit_w", start_ns, end_ns) for d in gpus))
        throttled = (d.gained("power_throttle_s", start_ns, end_ns) for d in gpus)
        window_s = (end_ns - start_ns) * 1e-9
        row |= _mean("power_throttle_share", (s and s / window_s for s in throttled))
        for device in self._devices:
            if device.kind == "cpu":
                cores = device.mean_cores(start_ns, end_ns)
                memory = device.inside("mem_used_bytes", start_ns, end_ns)
                row |= {"cpu_cores_mean": cores} if cores is not None else {}
                row |= {"mem_used_max_bytes": int(memory.max())} if len(memory) else {}
        return row


def _mean(name: str, values: Iterable[float | None]) -> dict[str, float]:
    """Return the mean of what is known, under a name; nothing where nothing is."""
    known = [value for value in values if value is not None]
    return {name: float(np.mean(known))} if known else {}


def _sum(values: Iterable[float | None]) -> float | None:
    """Add; one missing part makes the sum missing."""
    parts = list(values)
    known = [part for part in parts if part is not None]
    return sum(known) if parts and len(known) == len(parts) else None


def _both_ways(found: list[DeviceEnergy]) -> dict[str, float | None]:
    return {
        "gpu_energy_counter_j": _sum(one.counter_j for one in found),
        "gpu_energy_integral_j": _sum(one.integral_j for one in found),
    }


def _mean_power(known: list[DeviceEnergy], window_ns: int) -> float:
    """Return the mean power of a device over what is covered, averaged over devices, in watts."""
    spoken_for = [one.coverage if one.coverage < MIN_COVERAGE else 1.0 for one in known]
    watts = [
        (one.energy_j or 0.0) / (share * window_ns * 1e-9)
        for one, share in zip(known, spoken_for, strict=True)
    ]
    return float(np.mean(watts))


def _source(device: _Device, found: DeviceEnergy) -> str:
    return found.source if device.power_source == "measured" else str(device.power_source)


def _verdict(verdicts: list[Verdict], *, known: bool) -> Verdict:
    """Return the worst verdict; where some devices are unknown the sum is ``partial``."""
    if not known:
        return "unavailable"
    told: set[Verdict] = {"partial" if one == "unavailable" else one for one in verdicts}
    return max(told, key=VERDICTS.index)
