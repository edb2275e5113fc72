"""The energy and utilisation of windows from device samples: pure functions on arrays and tables.

What is read here so far is the energy of processors: counters that were measured or simulated or,
where there are none, the host's estimate (busy core-seconds times assumed watts). A window without
any energy sample has no energy, the source ``none`` and the verdict ``unavailable``.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from wattlaw.store.schema import ENERGY

#: Below this share of a window covered by samples its energy is ``partial``.
MIN_COVERAGE = 0.95

#: What a counter's energy is called, by ``power_source``; the best there is counts, alone.
SOURCES = {"measured": "counter", "simulated": "simulated", "estimated": "estimated"}

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class CounterEnergy:
    """Energy by a cumulative counter, and the share of the window for which it speaks."""

    energy_j: float | None
    coverage: float


def counter_energy(
    t_ns: npt.NDArray[np.int64], energy_j: Floats, start_ns: int, end_ns: int
) -> CounterEnergy:
    """Return the difference of a cumulative counter between two moments.

    Parameters
    ----------
    t_ns, energy_j
        Shape (n,): readings of one device, times ascending.
    start_ns, end_ns
        The window. Readings at its edges are interpolated; outside the readings nothing is
        assumed: the energy is that of the covered part, and ``coverage`` says how much that is.

    Returns
    -------
    CounterEnergy
        ``energy_j`` is None when no part of the window is covered.
    """
    if len(t_ns) < 2 or end_ns <= start_ns:
        return CounterEnergy(None, 0.0)
    begin, end = max(start_ns, int(t_ns[0])), min(end_ns, int(t_ns[-1]))
    if end <= begin:
        return CounterEnergy(None, 0.0)
    # Times relative to the window, so that float64 keeps nanoseconds.
    at = np.interp([begin - start_ns, end - start_ns], t_ns - start_ns, energy_j)
    return CounterEnergy(float(at[1] - at[0]), (end - begin) / (end_ns - start_ns))


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


class _Host:
    """The processor samples of one host, by device, in order of time."""

    def __init__(self, samples: pa.Table, host: str) -> None:
        mine = samples.filter((pc.field("host") == host) & (pc.field("kind") == "cpu"))
        self._devices = [
            mine.filter(pc.field("device") == device).sort_by("t_ns")
            for device in pc.unique(mine["device"]).to_pylist()
        ]

    def window(self, start_ns: int, end_ns: int) -> dict[str, Any]:
        row: dict[str, Any] = {"energy_source": "none", "energy_verdict": "unavailable"}
        for device in self._devices:
            inside = device.filter((pc.field("t_ns") >= start_ns) & (pc.field("t_ns") <= end_ns))
            used = {
                "cpu_cores_mean": pc.mean(inside["cpu_cores"]).as_py(),
                "mem_used_max_bytes": pc.max(inside["mem_used_bytes"]).as_py(),
            }
            row |= {name: value for name, value in used.items() if value is not None}
        return row | self._energy(start_ns, end_ns)

    def _energy(self, start_ns: int, end_ns: int) -> dict[str, Any]:
        """Return energy, source and verdict; an estimate is never added to a measurement."""
        for source, word in SOURCES.items():
            metered = [
                device.filter(
                    (pc.field("power_source") == source) & pc.field("energy_j").is_valid()
                )
                for device in self._devices
            ]
            found = [
                counter_energy(one["t_ns"].to_numpy(), one["energy_j"].to_numpy(), start_ns, end_ns)
                for one in metered
                if len(one)
            ]
            energies = [one.energy_j for one in found if one.energy_j is not None]
            if energies:
                whole = len(energies) == len(found)
                ok = whole and min(one.coverage for one in found) >= MIN_COVERAGE
                return {
                    "cpu_energy_j": sum(energies),
                    "energy_source": word,
                    "energy_verdict": "ok" if ok else "partial",
                }
        return {}
