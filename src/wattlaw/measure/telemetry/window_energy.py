"""The energy and utilisation of windows from the samples of a host's devices, each counted once.

A window without any energy has the source ``none`` and the verdict ``unavailable``. If some devices
have no energy, the sum is ``partial``. The node has a source and a verdict of its own, which state
nothing about the devices in it. A chassis is in the telemetry only: other jobs run in it.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wattlaw.common import scopes
from wattlaw.common.scopes import KINDS, PARTS, Candidate, KindEnergy, is_shared_with_jobs
from wattlaw.measure.telemetry.device_energy import (
    AVERAGE_S,
    MIN_COVERAGE,
    Counter,
    DeviceEnergy,
    EnergyEstimate,
    Power,
    Verdict,
    reconcile,
)
from wattlaw.measure.telemetry.plausibility import BUSY_UTIL, Bounds, clock_setbacks, stuck_power
from wattlaw.store.record import VERDICTS
from wattlaw.store.schema import WINDOW_ENERGY

#: For each kind of device, only the best kind of source of a host counts.
_POWER_SOURCES = ("measured", "simulated", "estimated")
#: Sources of power that the device averages.
_AVERAGED = ("average", "usage")

DeviceFacts = Mapping[str, Any]
_SOURCES = ("counter", "integral", "simulated", "estimated", "none")
#: Means leave out energies with these verdicts.
_UNUSED = VERDICTS[VERDICTS.index("partial") :]
#: These and greater values mean "not available" in a driver or a file: INT_MAX and UINT_MAX
#: milliwatts (2.1 and 4.3 MW), and values that no energy, share or clock can have.
_SENTINELS: Mapping[str, float] = {
    "power_w": 2_147_483.0, "energy_j": 1e15, "sm_util": 1e3, "mem_util": 1e3, "sm_clock_mhz": 1e6,
}  # fmt: skip
#: Later times are invalid: year 2116.
_LATEST_NS = 2**62


def energy_of_windows(
    windows: pa.Table, samples: pa.Table, facts: Mapping[tuple[str, str], DeviceFacts] | None = None
) -> pa.Table:
    """Return the ``WINDOW_ENERGY`` columns of ``WINDOWS``, from ``SAMPLES`` of the same host.

    ``facts`` are by host and device, of ``store.record.device_facts``: ``kind``, ``contains`` and
    the facts of ``measure.devices.meter.Device``.
    """
    samples = _valid_samples(samples)
    hosts = {
        host: _Host(samples, host, facts or {}) for host in pc.unique(windows["host"]).to_pylist()
    }
    rows = [
        hosts[window["host"]].window(*_edges(window["start_ns"], window["duration_s"]))
        for window in windows.to_pylist()
    ]
    return pa.Table.from_pylist(rows, schema=WINDOW_ENERGY)


def _edges(start_ns: int | None, duration_s: float | None) -> tuple[int, int]:
    if start_ns is None or duration_s is None or not 0 <= duration_s < _LATEST_NS * 1e-9:
        return 0, 0
    end_ns = start_ns + round(duration_s * 1e9)
    return (start_ns, end_ns) if 0 <= start_ns <= end_ns < _LATEST_NS else (0, 0)


def _valid_samples(samples: pa.Table) -> pa.Table:
    """Return the samples that have a device and a time, without invalid values."""
    t_ns = pc.field("t_ns")
    has_device = pc.field("device").is_valid() & pc.field("kind").is_valid()
    samples = samples.filter(has_device & (t_ns >= 0) & (t_ns < _LATEST_NS))
    for index, field in enumerate(samples.schema):
        if pa.types.is_floating(field.type):
            column, sentinel = samples.column(index), _SENTINELS.get(field.name, math.inf)
            is_valid = pc.and_(pc.greater_equal(column, 0.0), pc.less(column, sentinel))
            valid = pc.if_else(is_valid, column, pa.scalar(None, field.type))
            samples = samples.set_column(index, field, valid)
    return samples


class _DeviceSamples:
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
        self.power_source = next((name for name in _POWER_SOURCES if name in sources), None)
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


class _Kind(KindEnergy):
    def __init__(self, counted: list[Candidate[tuple[str, DeviceEnergy]]]) -> None:
        super().__init__(counted)
        self.energies = [candidate.device[1] for candidate in counted]
        self.known = [energy for energy in self.energies if energy.energy_j is not None]
        self.verdicts: list[Verdict] = [energy.verdict for energy in self.energies]
        named = (candidate.device for candidate in counted)
        self.reasons = [f"{device}: {energy.reason}" for device, energy in named if energy.reason]

    @property
    def verdict(self) -> Verdict:
        return _verdict(self.verdicts, known=bool(self.known))

    def energy_j(self) -> float | None:
        return _sum(energy.energy_j for energy in self.known)

    def source(self) -> str:
        if not self.known or self.rank:
            return _POWER_SOURCES[self.rank] if self.known else "none"
        return max((energy.source for energy in self.known), key=_SOURCES.index)


class _Host:
    def __init__(
        self, samples: pa.Table, host: str, facts: Mapping[tuple[str, str], DeviceFacts]
    ) -> None:
        own = samples.filter(pc.field("host") == host)
        self._devices = [
            _DeviceSamples(own.filter(pc.field("device") == device), facts.get((host, device), {}))
            for device in pc.unique(own["device"]).to_pylist()
        ]
        #: Devices that have no samples at all, by kind.
        self._failed: dict[str, list[Candidate[tuple[str, DeviceEnergy]]]] = {}
        for (device_host, device), features in facts.items():
            if device_host == host and features.get("failed"):
                reason = features["failed"]
                energy = DeviceEnergy(None, None, None, "none", 0.0, "unavailable", reason)
                failed = Candidate((device, energy), features["kind"], features, has_energy=False)
                self._failed.setdefault(failed.kind, []).append(failed)

    def window(self, start_ns: int, end_ns: int) -> dict[str, Any]:
        kinds = {kind: self._kind(kind, start_ns, end_ns) for kind in KINDS}
        node, module = kinds["node"], kinds["module"]
        known = {name: kind for name, kind in kinds.items() if kind.known}
        scope = scopes.total(known)
        inner = scopes.total({name: kind for name, kind in known.items() if name != "node"})
        parts = scopes.counted_parts(known)
        inside = {*known}.union(*(kinds[name].contains for name in parts)) - {*parts}
        devices = {name: kinds[name] for name in PARTS if name not in inside}
        reasons = [reason for name in (*PARTS, "module", "node") for reason in kinds[name].reasons]
        if module.is_used or not parts:
            devices["module"] = module  # else the devices in it count, without its fault
        if "module" in inner and module.is_used:
            for part in module.contains & devices.keys():
                if not devices[part].is_used:
                    del devices[part]  # a fault of a part is not one of the module
        verdicts = [verdict for kind in devices.values() for verdict in kind.verdicts]
        row: dict[str, Any] = {
            **{f"{name}_energy_j": kind.energy_j() for name, kind in devices.items()},
            "energy_source": max(
                (kinds[name].source() for name in inner), key=_SOURCES.index, default="none"
            ),
            "energy_verdict": _verdict(verdicts, known=bool(inner)),
        }
        if (gpu := devices.get("gpu")) and gpu.known:
            row["gpu_energy_counter_j"] = _sum(energy.counter_j for energy in gpu.energies)
            row["gpu_energy_integral_j"] = _sum(energy.integral_j for energy in gpu.energies)
            row["gpu_power_mean_w"] = _mean_power(gpu.known, end_ns - start_ns)
        if node.energies:
            row["node_energy_j"] = node.energy_j()
            row |= {"node_energy_source": node.source(), "node_energy_verdict": node.verdict}
        return {
            **row,
            **self._utilisation(start_ns, end_ns),
            "energy_scope": "+".join(scope) or None,
            "energy_reason": "; ".join(reasons) or None,
        }

    def _kind(self, kind: str, start_ns: int, end_ns: int) -> _Kind:
        """An estimate is never added to a measurement."""
        devices = [device for device in self._devices if device.kind == kind]
        sources = {device.power_source for device in devices}
        best = next((source for source in _POWER_SOURCES if source in sources), None)
        candidates = [
            Candidate(
                (device.id, energy := device.energy(start_ns, end_ns)), kind, device.facts,
                device.facts.get("contains") or (), energy.energy_j is not None,
                energy.verdict not in _UNUSED, _POWER_SOURCES.index(best),
            )
            for device in devices
            if best and device.power_source == best
        ]  # fmt: skip
        return _Kind(scopes.select(kind, [*candidates, *self._failed.get(kind, [])]))

    def _utilisation(self, start_ns: int, end_ns: int) -> dict[str, Any]:
        """Return the utilisation of the host's devices, without columns that none of them has."""
        row: dict[str, Any] = {}
        gpus = [device for device in self._devices if device.kind == "gpu"]
        for column in ("sm_util", "mem_util", "sm_clock_mhz"):
            values = [gpu.values_in(column, start_ns, end_ns) for gpu in gpus]
            samples = np.concatenate([np.zeros(0), *values])
            if not len(samples):
                continue
            mean = float(samples.mean())
            name = column.removesuffix("_mhz")
            unit = "_mhz" if column.endswith("_mhz") else ""
            row[f"{name}_mean{unit}"] = mean
            if not unit and mean > 0:  # including differences between GPUs
                row[f"{name}_cv"] = float(samples.std()) / mean
        limits_w = (gpu.slow_mean("power_limit_w", start_ns, end_ns) for gpu in gpus)
        row |= _mean("power_limit_mean_w", limits_w)
        throttled = (d.increase("power_throttle_s", start_ns, end_ns) for d in gpus)
        window_s = (end_ns - start_ns) * 1e-9
        row |= _mean("power_throttle_share", (s and s / window_s for s in throttled))
        for device in self._devices:
            if device.kind == "cpu":
                cores = device.mean_cores(start_ns, end_ns)
                memory = device.values_in("mem_used_bytes", start_ns, end_ns)
                row |= {"cpu_cores_mean": cores} if cores is not None else {}
                row |= {"mem_used_max_bytes": int(memory.max())} if len(memory) else {}
        return row


def _mean(name: str, values: Iterable[float | None]) -> dict[str, float]:
    known = [value for value in values if value is not None]
    return {name: float(np.mean(known))} if known else {}


def _sum(values: Iterable[float | None]) -> float | None:
    parts = list(values)
    known = [part for part in parts if part is not None]
    return sum(known) if parts and len(known) == len(parts) else None


def _mean_power(known: list[DeviceEnergy], window_ns: int) -> float:
    watts = []
    for energy in known:
        share = energy.coverage if energy.coverage < MIN_COVERAGE else 1.0
        watts.append((energy.energy_j or 0.0) / (share * window_ns * 1e-9))
    return float(np.mean(watts))


def _verdict(verdicts: list[Verdict], *, known: bool) -> Verdict:
    if not known:
        return "unavailable"
    known_verdicts: list[Verdict] = ["partial" if v == "unavailable" else v for v in verdicts]
    return max(known_verdicts, key=VERDICTS.index)
