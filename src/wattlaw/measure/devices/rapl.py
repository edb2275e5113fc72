"""Energy of processor packages and memory by RAPL, as Linux's powercap shows it.

``/sys/class/powercap/intel-rapl:N`` is a package and ``intel-rapl:N:M`` a part of it (core, uncore,
dram), on Intel and AMD (kernel documentation, power/powercap). Counters are in microjoules and
restart at 0 after ``max_energy_range_uj``.
"""

from dataclasses import replace
from pathlib import Path
from typing import Self

from wattlaw.common.errors import NotAvailable
from wattlaw.measure.devices import sysfs
from wattlaw.measure.devices.file_meter import (
    FileMeter,
    FileSource,
    failed_device,
    reading_error,
    shares_node,
)
from wattlaw.measure.devices.meter import Device, Facts, Target

#: Counters refresh every millisecond. More frequent readings do not improve a window's energy.
_REFRESH_S, _MIN_PERIOD_S = 0.001, 0.05
_PACKAGE = "cores, caches and memory controllers, of all users of the machine"
_MEMORY = "memory modules, of all users of the machine"


class RaplMeter(FileMeter):
    """All packages of the host, and their memory where the processor counts it."""

    @classmethod
    def open(cls, target: Target) -> Self:
        root = sysfs.root() / "class/powercap"
        zones, unreadable = [], []
        for path in sorted(root.glob("intel-rapl:*")):
            try:
                zone = _zone(path)
            except (OSError, ValueError) as error:
                if path.name.count(":") == 1:  # a package or the platform, not a part of one
                    reason = reading_error(path / "name", error)
                    device = Device(path.name, "cpu", "an unknown RAPL zone")
                    unreadable.append(failed_device(device, reason))
                continue
            zones += [zone] if zone is not None else []
        if not zones:
            raise NotAvailable(f"no RAPL counters in {root} (a virtual machine, or no driver)")
        return cls(zones, max(target.period_s, _MIN_PERIOD_S), failed=unreadable)


def _zone(path: Path) -> FileSource | None:
    """None for parts of a package other than its memory."""
    name = sysfs.read_text(path / "name")
    number = path.name.removeprefix("intel-rapl:")
    socket = number.split(":")[0]
    range_uj = sysfs.read_optional(path / "max_energy_range_uj") or None
    if name.startswith("package"):
        device, scope = Device(f"package-{number}", "cpu", f"processor {name}"), _PACKAGE
    elif name == "dram":
        device, scope = Device(f"dram-{socket}", "dram", f"memory of package {socket}"), _MEMORY
    else:
        return None
    facts: Facts = {
        "scope": scope, "energy_counter": "powercap", "counter_refresh_s": _REFRESH_S,
        "wraps_at_j": range_uj and range_uj * 1e-6, "is_shared": shares_node(),
    }  # fmt: skip
    return FileSource(replace(device, facts=facts), path / "energy_uj", wraps_at=range_uj)
