"""Energy of processor packages and memory by RAPL, as Linux's powercap shows it.

``/sys/class/powercap/intel-rapl:N`` is a package and ``intel-rapl:N:M`` a part of it (core, uncore,
dram), on Intel and AMD (kernel documentation, power/powercap). Counters are in microjoules and
restart at 0 after ``max_energy_range_uj``.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from wattlaw.devices import sysfs
from wattlaw.devices.meter import Device, Facts, Meter, Sample, Target
from wattlaw.errors import NotAvailable, NotPermitted, one_line

#: Counters refresh every millisecond. More frequent readings do not improve a window's energy.
_REFRESH_S, _MIN_PERIOD_S = 0.001, 0.05
_SCOPES = {
    "cpu": "cores, caches and memory controllers, of all users of the machine",
    "dram": "memory modules, of all users of the machine",
}
#: No package draws more. A decrease that would mean more is no wrap-around.
_MAX_W = 5000.0
_MIN_INTERVAL_S = 0.1


@dataclass
class _Zone:
    id: str
    kind: Literal["cpu", "dram"]
    name: str
    path: Path
    range_uj: int | None  # None: unknown, so that a wrap-around cannot be corrected
    raw_uj: int = 0
    wrapped_uj: int = 0
    read_s: float = 0.0

    def energy_j(self) -> float:
        """Return the energy since some start, corrected for wrap-around.

        It detects one wrap-around between two readings; with a reading a second there are never
        two. A decrease that no power could explain is no wrap-around. It is not corrected, and the
        energy of the window gets a fault.
        """
        raw, now_s = sysfs.read_number(self.path), time.monotonic()
        if self.range_uj is not None and raw > self.range_uj:
            self.range_uj = None  # the stated range is wrong
        if raw < self.raw_uj and self.range_uj is not None:
            increase_j = (self.range_uj - self.raw_uj + raw) * 1e-6
            if increase_j <= _MAX_W * max(now_s - self.read_s, _MIN_INTERVAL_S):
                self.wrapped_uj += self.range_uj
        self.raw_uj, self.read_s = raw, now_s
        return (raw + self.wrapped_uj) * 1e-6


class RaplMeter(Meter):
    """All packages of the host, and their memory where the processor counts it."""

    def __init__(self, zones: list[_Zone], period_s: float) -> None:
        self._zones = zones
        self.period_s = max(period_s, _MIN_PERIOD_S)
        self._problems: list[str] = []
        self._unreadable: list[Device] = []  # zones whose name cannot be read

    @classmethod
    def open(cls, target: Target) -> Self:
        """Find the counters.

        Raises ``NotAvailable`` if the kernel shows none, and ``NotPermitted`` if only root can
        read them; the message says how an administrator can change that.
        """
        root = sysfs.root() / "class/powercap"
        zones, unreadable = [], []
        for path in sorted(root.glob("intel-rapl:*")):
            try:
                zone = _zone(path)
            except (OSError, ValueError) as error:
                if path.name.count(":") == 1:  # a package or the platform, not a part of one
                    facts = {"failed": f"cannot be read: {one_line(error)}"}
                    unreadable.append(Device(path.name, "cpu", "an unknown RAPL zone", facts))
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
        meter._unreadable = unreadable
        return meter

    def devices(self) -> list[Device]:
        """Return packages and memories."""
        devices = []
        for zone in self._zones:
            range_j = None if zone.range_uj is None else zone.range_uj * 1e-6
            facts: Facts = {
                "scope": _SCOPES[zone.kind], "energy_counter": "powercap",
                "counter_refresh_s": _REFRESH_S, "wraps_at_j": range_j,
            }  # fmt: skip
            devices.append(Device(zone.id, zone.kind, zone.name, facts))
        return devices + self._unreadable

    def read(self, *, last: bool = False) -> list[Sample]:  # noqa: ARG002 - nothing is buffered
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
        """Return why counters are not read any more."""
        return list(self._problems)


def _zone(path: Path) -> _Zone | None:
    """Return the zone of a package or its memory, None for other parts of a package.

    Raises ``OSError`` or ``ValueError`` if the name of the zone cannot be read.
    """
    name = sysfs.read_text(path / "name")
    number = path.name.removeprefix("intel-rapl:")
    try:
        range_uj = sysfs.read_number(path / "max_energy_range_uj")
    except (OSError, ValueError):
        range_uj = 0
    counter = path / "energy_uj"
    if name.startswith("package"):
        return _Zone(f"package-{number}", "cpu", f"processor {name}", counter, range_uj or None)
    if name == "dram":
        socket = number.split(":")[0]
        name = f"memory of package {socket}"
        return _Zone(f"dram-{socket}", "dram", name, counter, range_uj or None)
    return None
