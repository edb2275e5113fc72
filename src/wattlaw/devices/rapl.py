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
from wattlaw.errors import NotAvailable, NotPermitted, one_line

#: Another root, for tests.
ROOT_VARIABLE = "WATTLAW_POWERCAP"
_ROOT = "/sys/class/powercap"
#: Counters refresh every millisecond; more often than this tells nothing new of a window.
_FASTEST_S = 0.05
#: More than any package draws; a fall that would mean more is no wrap.
_MOST_W = 5000.0
_SHORTEST_S = 0.1
#: Bytes of a file that are read; a name or number of the kernel is shorter.
_LONGEST = 64


@dataclass
class _Zone:
    """One counter: a package or the memory of one."""

    id: str
    kind: Literal["cpu", "dram"]
    name: str
    path: Path
    range_uj: int | None  # None: not known, so that a wrap cannot be corrected
    raw_uj: int = 0
    wrapped_uj: int = 0
    read_s: float = 0.0

    def energy_j(self) -> float:
        """Return the energy since some start, with what was lost by starting again at 0 added.

        One wrap between two readings is seen; a reading a second leaves no room for two. A fall
        that no power could explain is none: it is passed on, and the counter is found at fault.
        """
        raw, now_s = _number(self.path), time.monotonic()
        if self.range_uj is not None and raw > self.range_uj:
            self.range_uj = None  # it is not the range
        if raw < self.raw_uj and self.range_uj is not None:
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
        self._unnamed: list[Device] = []  # zones that do not tell what they are

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
        zones, unnamed = [], []
        for path in sorted(root.glob("intel-rapl:*")):
            try:
                zone = _zone(path)
            except (OSError, ValueError) as error:
                if path.name.count(":") == 1:  # a package or the platform, not a part of one
                    told = {"failed": f"cannot be read: {one_line(error)}"}
                    unnamed.append(Device(path.name, "cpu", "an unknown RAPL zone", told))
                continue
            zones += [zone] if zone is not None else []
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
        meter = cls(zones, target.period_s)
        meter._unnamed = unnamed
        return meter

    def devices(self) -> list[Device]:
        """Return packages and memories."""
        return [
            Device(zone.id, zone.kind, zone.name, {"wraps_at_j": _joules(zone.range_uj)})
            for zone in self._zones
        ] + self._unnamed

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
    """Return a package or memory; cores and the like are parts of a package already.

    Raises
    ------
    OSError, ValueError
        The zone does not tell what it is.
    """
    name = _read(path / "name")
    number = path.name.removeprefix("intel-rapl:")
    try:
        range_uj = _number(path / "max_energy_range_uj")
    except (OSError, ValueError):
        range_uj = 0
    counter = path / "energy_uj"
    if name.startswith("package"):
        return _Zone(f"package-{number}", "cpu", f"processor {name}", counter, range_uj or None)
    if name == "dram":
        socket = number.split(":")[0]
        told = f"memory of package {socket}"
        return _Zone(f"dram-{socket}", "dram", told, counter, range_uj or None)
    return None


def _read(path: Path) -> str:
    """Return the text of a file of the kernel; they are short."""
    with path.open("rb") as file:
        return file.read(_LONGEST).decode("ascii").strip()


def _number(path: Path) -> int:
    """Return the number in a file of the kernel.

    Raises
    ------
    OSError, ValueError
        There is none, or it does not fit into the kernel's 64 bits.
    """
    told = _read(path)
    if not told.isdigit() or int(told) >= 2**63:
        raise ValueError(f"{told[:20]!a} is no count of microjoules")
    return int(told)


def _joules(microjoules: int | None) -> float | None:
    return None if microjoules is None else microjoules * 1e-6
