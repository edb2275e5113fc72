"""The energy and utilisation of windows: the samples of a host's devices, each counted once.

A window without any energy has the source ``none`` and the verdict ``unavailable``. What a part of
the devices does not know makes a sum ``partial``, never silently smaller.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wattlaw.store.schema import ENERGY
from wattlaw.telemetry.device_energy import Counter, DeviceEnergy, Part, Power, Verdict, judged

#: From the best to the worst; a row takes the worst of its parts.
_VERDICTS: tuple[Verdict, ...] = ("ok", "suspect", "partial", "unavailable")
_SOURCES = ("counter", "integral", "simulated", "estimated", "none")
#: The best kind of source that a host has for a kind of device counts, alone.
_POWER_SOURCES = ("measured", "simulated", "estimated")
_KINDS = ("gpu", "cpu", "dram")


def energy_of_windows(windows: pa.Table, samples: pa.Table) -> pa.Table:
    """Return the ``ENERGY`` columns, one row per window.

    Parameters
    ----------
    windows
        With the columns of ``store.schema.WINDOWS``.
    samples
        With the columns of ``store.schema.SAMPLES``; each window is met with those of its host.
    """
    hosts = {host: _Host(samples, host) for host in pc.unique(windows["host"]).to_pylist()}
    rows = [
        hosts[window["host"]].window(
            window["start_ns"], window["start_ns"] + round(window["duration_s"] * 1e9)
        )
        for window in windows.to_pylist()
    ]
    return pa.Table.from_pylist(rows, schema=ENERGY)


class _Device:
    """The samples of one device in order of time."""

    def __init__(self, samples: pa.Table) -> None:
        self._samples = samples.sort_by("t_ns")
        self._t_ns = self._samples["t_ns"].to_numpy()
        self.kind: str = self._samples["kind"][0].as_py()
        said = set(pc.unique(self._samples["power_source"]).to_pylist())
        self.power_source = next((name for name in _POWER_SOURCES if name in said), None)
        self._counter = Counter(*self._series("energy_j"))
        self._power = Power(*self._series("power_w"))

    def _series(self, column: str) -> tuple[Any, Any]:
        known = self._samples.filter(pc.field(column).is_valid())
        return known["t_ns"].to_numpy(), known[column].to_numpy()

    def energy(self, start_ns: int, end_ns: int) -> DeviceEnergy:
        """Return the energy of a window."""
        measured = self.power_source == "measured"
        counter = self._counter.between(start_ns, end_ns, must_move=measured)
        # An estimate has no power of its own with which its counter could be compared.
        estimated = self.power_source == "estimated"
        power = Part(None, 0.0) if estimated else self._power.between(start_ns, end_ns)
        return judged(
            counter,
            power,
            (end_ns - start_ns) * 1e-9,
            self._counter.refresh_s if measured else None,
        )

    def inside(self, column: str, start_ns: int, end_ns: int) -> Any:
        """Return the known values of a column within a window."""
        first, last = np.searchsorted(self._t_ns, [start_ns, end_ns + 1])
        values = self._samples[column].slice(first, last - first).drop_null()
        return values.to_numpy()


class _Host:
    """The devices of one host."""

    def __init__(self, samples: pa.Table, host: str) -> None:
        mine = samples.filter(pc.field("host") == host)
        self._devices = [
            _Device(mine.filter(pc.field("device") == device))
            for device in pc.unique(mine["device"]).to_pylist()
        ]

    def window(self, start_ns: int, end_ns: int) -> dict[str, Any]:
        row: dict[str, Any] = {}
        sources, verdicts = [], []
        for kind in _KINDS:
            used = self._best(kind)
            found = [device.energy(start_ns, end_ns) for device in used]
            known = [one for one in found if one.energy_j is not None]
            if not used:
                continue
            verdicts += [one.verdict for one in found]
            if not known:
                continue
            row[f"{kind}_energy_j"] = _sum(one.energy_j for one in known)
            sources += [_source(device, one) for device, one in zip(used, found, strict=True)]
            if kind == "gpu":
                row |= _both_ways(found) | {
                    "gpu_power_mean_w": _mean_power(known, end_ns - start_ns)
                }
        return {
            **row,
            **self._use(start_ns, end_ns),
            "energy_source": max(sources, key=_SOURCES.index, default="none"),
            "energy_verdict": _verdict(verdicts, known=bool(sources)),
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
            means = [float(one.mean()) for one in told]
            name = column.removesuffix("_mhz")
            unit = "_mhz" if column.endswith("_mhz") else ""
            row[f"{name}_mean{unit}"] = float(np.mean(means))
            if not unit and min(means) > 0:
                cv = [float(one.std()) / mean for one, mean in zip(told, means, strict=True)]
                row[f"{name}_cv"] = float(np.mean(cv))
        for device in self._devices:
            if device.kind == "cpu":
                cores = device.inside("cpu_cores", start_ns, end_ns)
                memory = device.inside("mem_used_bytes", start_ns, end_ns)
                row |= {"cpu_cores_mean": float(cores.mean())} if len(cores) else {}
                row |= {"mem_used_max_bytes": int(memory.max())} if len(memory) else {}
        return row


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
    watts = [(one.energy_j or 0.0) / (one.coverage * window_ns * 1e-9) for one in known]
    return float(np.mean(watts))


def _source(device: _Device, found: DeviceEnergy) -> str:
    return found.source if device.power_source == "measured" else str(device.power_source)


def _verdict(verdicts: list[Verdict], *, known: bool) -> Verdict:
    """Return the worst verdict; where some devices are unknown the sum is ``partial``."""
    if not known:
        return "unavailable"
    worst = max(verdicts, key=_VERDICTS.index)
    return "partial" if worst == "unavailable" else worst
