"""Energy of processor packages and memory by RAPL, as Linux's powercap shows it.

``/sys/class/powercap/intel-rapl:N`` is a package, ``intel-rapl:N:M`` a part of it (core, uncore,
dram); Intel and AMD alike (kernel documentation, power/powercap). Counters are in microjoules and
start again at 0 after ``max_energy_range_uj``.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from wattlaw.devices.meter import Device, Sample, Target
from wattlaw.errors import NotAvailable, NotPermitted

#: Another root, for tests.
ROOT_VARIABLE = "WATTLAW_POWERCAP"
_ROOT = "/sys/class/powercap"
#: Counters refresh every millisecond; more often than this tells nothing new of a window.
_FASTEST_S = 0.05
#: More than any package draws; a fall that would mean more is no wrap.
_MOST_W = 5000.0
_SHORTEST_S = 0.1


@dataclass
class _Zone:
    """One counter: a package or the memory of one."""

    id: str
    kind: Literal["cpu", "dram"]
    name: str
    path: Path
    range_uj: int
    raw_uj: int = 0
    wrapped_uj: int = 0
    read_s: float = 0.0

    def energy_j(self) -> float:
        """Return the energy since some start, with what was lost by starting again at 0 added.

        One wrap between two readings is seen; a reading a second leaves no room for two. A fall
        that no power could explain is none: it is passed on, and the counter is found at fault.
        """
        raw, now_s = int(self.path.read_text()), time.monotonic()
        if raw < self.raw_uj:
            gained_j = (self.range_uj - self.raw_uj + raw) * 1e-6
            if gained_j <= _MOST_W * max(now_s - self.read_s, _SHORTEST_S):
                self.wrapped_uj += self.range_uj
        self.raw_uj, self.read_s = raw, now_s
        return (raw + self.wrapped_uj) * 1e-6


class RaplMeter:
    """All packages of the host, and their memory where the processor counts it."""

    def __init__(self, zones: list[_Zone], period_s: float) -> None:
        self._zones = zones
        self.period_s = max(period_s, _FASTEST_S)
        self._problems: list[str] = []

    @classmethod
    def open(cls, target: Target) -> Self:
        """Find the counters.

        Raises
        ------
        NotAvailable
            The kernel shows none.
        NotPermitted
            They are root's only; the text says how an administrator changes that.
        """
        root = Path(os.environ.get(ROOT_VARIABLE, _ROOT))
        found = [_zone(path) for path in sorted(root.glob("intel-rapl:*"))]
        zones = [zone for zone in found if zone is not None]
        if not zones:
            raise NotAvailable(f"no RAPL counters in {root} (a virtual machine, or no driver)")
        for zone in zones:
            try:
                zone.energy_j()
            except PermissionError:
                raise NotPermitted(
                    f"{zone.path} can be read by root only; an administrator can allow it with: "
                    "chmod o+r /sys/class/powercap/intel-rapl:*/energy_uj"
                ) from None
            except (OSError, ValueError) as error:
                raise NotAvailable(f"{zone.path} cannot be read: {error}") from None
        return cls(zones, target.period_s)

    def devices(self) -> list[Device]:
        """Return packages and memories."""
        return [
            Device(zone.id, zone.kind, zone.name, {"wraps_at_j": zone.range_uj * 1e-6})
            for zone in self._zones
        ]

    def read(self, *, last: bool = False) -> list[Sample]:  # noqa: ARG002 - nothing is held back
        """Return one reading of each counter that answers."""
        samples = []
        for zone in list(self._zones):
            t_ns = time.time_ns()
            try:
                energy_j = zone.energy_j()
            except (OSError, ValueError) as error:
                self._zones.remove(zone)
                self._problems.append(f"{zone.id}: given up: {error}")
                continue
            samples.append(
                Sample(zone.id, zone.kind, t_ns, energy_j=energy_j, power_source="measured")
            )
        return samples

    def problems(self) -> list[str]:
        """Return why counters are read no more."""
        return list(self._problems)

    def close(self) -> None:
        """Nothing is held open."""


def _zone(path: Path) -> _Zone | None:
    """Return a package or memory; cores and the like are parts of a package already."""
    try:
        name = (path / "name").read_text().strip()
        range_uj = int((path / "max_energy_range_uj").read_text())
    except (OSError, ValueError):
        return None
    number = path.name.removeprefix("intel-rapl:")
    if name.startswith("package"):
        return _Zone(f"package-{number}", "cpu", f"processor {name}", path / "energy_uj", range_uj)
    if name == "dram":
        socket = number.split(":")[0]
        return _Zone(f"dram-{socket}", "dram", f"memory of package {socket}",
                     path / "energy_uj", range_uj)  # fmt: skip
    return None
