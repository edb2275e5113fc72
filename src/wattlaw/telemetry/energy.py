"""The energy and utilisation of windows from the samples of a host's devices, each counted once.

A window without any energy has the source ``none`` and the verdict ``unavailable``. If some devices
have no energy, the sum is ``partial``.
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
    AVERAGE_S,
    MIN_COVERAGE,
    Counter,
    DeviceEnergy,
    EnergyEstimate,
    Power,
    Verdict,
    reconcile,
)
from wattlaw.telemetry.plausibility import BUSY_UTIL, Bounds, clock_setbacks, stuck_power

_SOURCES = ("counter", "integral", "simulated", "estimated", "none")
#: For each kind of device, only the best kind of source of a host counts.
_POWER_SOURCES = ("measured", "simulated", "estimated")
_KINDS = ("gpu", "cpu", "dram")
#: Sources of power that the device averages.
_AVERAGED = ("average", "usage")
#: These and greater values mean "not available" in a driver or a file: INT_MAX and UINT_MAX
#: milliwatts (2.1 and 4.3 MW), and values that no energy, share or clock can have.
_SENTINELS: Mapping[str, float] = {
    "power_w": 2_147_483.0, "energy_j": 1e15, "sm_util": 1e3, "mem_util": 1e3, "sm_clock_mhz": 1e6,
}  # fmt: skip
#: Later times are invalid: year 2116.
_LATEST_NS = 2**62


def energy_of_windows(
    windows: pa.Table, samples: pa.Table, facts: Mapping[tuple[str, str], Facts] | None = None
) -> pa.Table:
    """Return the ``WINDOW_ENERGY`` columns, one row per window.

    Parameters
    ----------
    windows
        With the columns of ``store.schema.WINDOWS``.
    samples
        With the columns of ``store.schema.SAMPLES``. A window uses those of its host.
    facts
        By host and device, the features that its meter has detected: ``counter_refresh_s``,
        ``power`` (its source), ``max_power_limit_w``, ``is_shared``, and ``failed`` of a device
        that could not be read at all.
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
    """Return the begin and the end of a window; (0, 0) if its times are invalid."""
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


class _Device:
    """The samples of one device in order of time."""

    def __init__(self, samples: pa.Table, facts: Facts) -> None:
        self._setbacks = [
            clock_setbacks(samples.filter(pc.field(column).is_valid())["t_ns"].to_numpy())
            for column in ("power_w", "energy_j")
        ]
        self._samples = samples.sort_by("t_ns")
        self._t_ns = self._samples["t_ns"].to_numpy()
        self.id: str = self._samples["device"][0].as_py()
        refresh_s = facts.get("counter_refresh_s")
        self._refresh_s = refresh_s if isinstance(refresh_s, float) else None
        self._average_s = AVERAGE_S if facts.get("power") in _AVERAGED else 0.0
        self._is_shared = bool(facts.get("is_shared"))
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
        """Return the energy of a window."""
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
        if caveat is not None and energy.verdict == "ok":
            return dataclasses.replace(energy, verdict="suspect", reason=caveat)
        return energy

    def _caveat(self, start_ns: int, end_ns: int) -> str | None:
        """Return why an energy without a fault may still be wrong."""
        if self._is_shared:
            return "the GPU is shared (MIG), and its energy is that of all its users"
        if any(setbacks.overlaps(start_ns, end_ns) for setbacks in self._setbacks):
            return "the clock was set back, so that some times occur twice"
        return None

    def _resolution_s(self) -> float | None:
        """Return the shortest window whose energy the counter resolves, in seconds.

        This is its refresh period. If it was read more seldom, the power between its readings
        divides its energy; without such power it is the time between readings.
        """
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
        """Return the valid values of a column within a window."""
        first, last = np.searchsorted(self._t_ns, [start_ns, end_ns + 1])
        values = self._samples[column].slice(first, last - first).drop_null()
        return values.to_numpy()


class _Host:
    def __init__(
        self, samples: pa.Table, host: str, facts: Mapping[tuple[str, str], Facts]
    ) -> None:
        own = samples.filter(pc.field("host") == host)
        self._devices = [
            _Device(own.filter(pc.field("device") == device), facts.get((host, device), {}))
            for device in pc.unique(own["device"]).to_pylist()
        ]
        #: Why devices have no samples at all.
        self._failed_devices = [
            f"{device}: {features['failed']}"
            for (device_host, device), features in facts.items()
            if device_host == host and features.get("failed")
        ]

    def window(self, start_ns: int, end_ns: int) -> dict[str, Any]:
        row: dict[str, Any] = {}
        sources: list[str] = []
        verdicts: list[Verdict] = []
        reasons = list(self._failed_devices)
        if reasons:
            verdicts.append("unavailable")
        for kind in _KINDS:
            devices = self._devices_that_count(kind)
            energies = [device.energy(start_ns, end_ns) for device in devices]
            verdicts += [energy.verdict for energy in energies]
            pairs = list(zip(devices, energies, strict=True))
            reasons += [f"{device.id}: {e.reason}" for device, e in pairs if e.reason]
            known = [energy for energy in energies if energy.energy_j is not None]
            if not known:
                continue
            row[f"{kind}_energy_j"] = _sum(energy.energy_j for energy in known)
            sources += [
                e.source if device.power_source == "measured" else str(device.power_source)
                for device, e in pairs
                if e.energy_j is not None
            ]
            if kind == "gpu":
                row["gpu_energy_counter_j"] = _sum(energy.counter_j for energy in energies)
                row["gpu_energy_integral_j"] = _sum(energy.integral_j for energy in energies)
                row["gpu_power_mean_w"] = _mean_power(known, end_ns - start_ns)
        return {
            **row,
            **self._utilisation(start_ns, end_ns),
            "energy_source": max(sources, key=_SOURCES.index, default="none"),
            "energy_verdict": _verdict(verdicts, known=bool(sources)),
            "energy_reason": "; ".join(reasons) or None,
        }

    def _devices_that_count(self, kind: str) -> list[_Device]:
        """Return the devices of a kind that count: an estimate is never added to a measurement."""
        devices = [device for device in self._devices if device.kind == kind]
        sources = {device.power_source for device in devices}
        best = next((source for source in _POWER_SOURCES if source in sources), None)
        return [device for device in devices if best and device.power_source == best]

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
    """Return the mean of the known values under a name, or nothing."""
    known = [value for value in values if value is not None]
    return {name: float(np.mean(known))} if known else {}


def _sum(values: Iterable[float | None]) -> float | None:
    """Return the sum, None if one part is missing."""
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
    """Return the worst verdict; ``partial`` if some devices have no energy."""
    if not known:
        return "unavailable"
    known_verdicts: list[Verdict] = ["partial" if v == "unavailable" else v for v in verdicts]
    return max(known_verdicts, key=VERDICTS.index)
