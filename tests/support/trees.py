"""Trees of the kernel's files as on machines of real centres, for ``WATTLAW_SYSFS_ROOT``.

Layouts are those of the kernel's documentation and drivers, and of public scripts that read them:
- Intel GPUs: ABI/testing/sysfs-driver-intel-i915-hwmon and -xe-hwmon; i915_hwmon.c and xe_hwmon.c;
  the chips of tiles as in Intel's compute-runtime (linux_power_imp_prelim.cpp).
- Grace: hwmon/acpi_power_meter.rst, acpi_power_meter.c (names and sensors in the ACPI device), and
  the channels of NVIDIA's ACPI tables (edk2-nvidia, "Module Power Socket 0" and others).
- pm_counters: Cray-HPE/docs-csm, "User Access to Compute Node Power Data"; GEOPM's CNLIOGroup.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

from fake_amdsmi import AmdMachine
from powercap import Powercap


def put(path: Path, value: object) -> Path:
    """Write a file as the kernel does, with a newline."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{value}\n")
    return path


def link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(os.path.relpath(target, path.parent))


def increase(path: Path, by: int) -> None:
    put(path, int(path.read_text().split()[0]) + by)


class IntelCards:
    """Cards of an i915 or xe driver; ``watts`` is the power of each."""

    def __init__(
        self, root: Path, count: int, tiles: int = 2, driver: str = "i915", limit_w: float = 600.0
    ) -> None:
        self.folders: list[Path] = []
        self.watts = 400.0
        self.sensor = 1 if driver == "i915" else 2  # xe has the package's on this model
        for index in range(count):
            device = root / f"devices/pci0000:{0x15 + index:02x}/0000:{0x18 + index:02x}:00.0"
            put(device / "vendor", "0x8086")
            put(device / "device", "0x0bd5")
            put(device / "class", "0x038000")
            # Of the order of the cards and of their PCI addresses, only the latter counts.
            card = root / f"class/drm/card{count - index}"
            link(card / "device", device)
            (root / f"class/drm/card{count - index}-DP-1").mkdir()
            chip = device / f"hwmon/hwmon{3 * index}"
            put(chip / "name", driver)
            if driver == "xe":
                put(chip / f"energy{self.sensor}_label", "pkg")
                put(chip / "in2_label", "pkg")
                for tile in range(tiles):
                    (device / f"tile{tile}").mkdir()
            put(chip / f"energy{self.sensor}_input", 10**12)
            put(chip / f"power{self.sensor}_max", round(limit_w * 1e6))
            put(chip / f"power{self.sensor}_rated_max", 600_000_000)
            put(chip / f"power{self.sensor}_max_interval", 28)
            put(chip / "curr1_crit", 2_000_000)
            self.folders.append(chip)
            for tile in range(tiles if driver == "i915" else 0):
                put(device / f"hwmon/hwmon{3 * index + 1 + tile}/name", f"i915_gt{tile}")
                put(device / f"hwmon/hwmon{3 * index + 1 + tile}/energy1_input", 4 * 10**11)

    def energy(self, index: int = 0) -> Path:
        return self.folders[index] / f"energy{self.sensor}_input"

    def limit(self, index: int = 0) -> Path:
        return self.folders[index] / f"power{self.sensor}_max"

    def advance(self, seconds: float) -> None:
        """Let all cards and tiles use their power."""
        for chip in self.folders:
            increase(chip / f"energy{self.sensor}_input", round(self.watts * seconds * 1e6))
            for tile in chip.parent.glob("*/energy1_input"):
                if (tile.parent / "name").read_text().startswith("i915_gt"):
                    increase(tile, round(0.4 * self.watts * seconds * 1e6))


#: Power of each channel of a Grace Hopper socket under load, in watts.
CHANNELS = {"Module": 640.0, "Grace": 180.0, "CPU": 120.0, "SysIO": 30.0}


class AcpiMeters:
    """ACPI power meters, each with a name or without; in older kernels in the ACPI device."""

    def __init__(
        self, root: Path, names: dict[str, float], *, interval_ms: int = 50, old: bool = True
    ) -> None:
        self.files: dict[str, Path] = {}
        for index, (name, watts) in enumerate(names.items()):
            device = root / f"devices/LNXSYSTM:00/LNXSYBUS:00/ACPI000D:{index:02x}"
            chip = device / f"hwmon/hwmon{index}"
            place = device if old else chip
            put(place / "name", "power_meter")
            put(place / "power1_average_interval", interval_ms)
            put(place / "power1_is_battery", 0)
            put(place / "power1_accuracy", "95.0%")
            for text in ("power1_model_number", "power1_serial_number"):
                put(place / text, "")
            put(place / "power1_oem_info", name)
            self.files[name] = put(place / "power1_average", round(watts * 1e6))
            chip.mkdir(parents=True, exist_ok=True)
            link(chip / "device", device)
            link(root / f"class/hwmon/hwmon{index}", chip)


def grace_names(sockets: int) -> dict[str, float]:
    """Return the channels of Grace Hopper sockets with their power."""
    return {
        f"{channel} Power Socket {socket}": watts
        for socket in range(sockets)
        for channel, watts in CHANNELS.items()
    }


class PmCounters:
    """The counters of a Cray EX node, with the power of each part."""

    def __init__(self, root: Path, accelerators: int = 4) -> None:
        self.folder = root / "cray/pm_counters"
        parts = {"": 2000.0, "cpu_": 200.0, "memory_": 80.0}
        self.watts = parts | {f"accel{index}_": 400.0 for index in range(accelerators)}
        self.joules = dict.fromkeys(self.watts, 10**6)
        for name, value in {"freshness": 0, "version": 3}.items():
            put(self.folder / name, value)
        put(self.folder / "raw_scan_hz", 10)
        put(self.folder / "cpu0_temp", "43 C")
        self.advance(0)

    def advance(self, seconds: float) -> None:
        """Let all parts use their power, and update all files."""
        stamp_us = time.time_ns() // 1000
        for part, watts in self.watts.items():
            self.joules[part] += round(watts * seconds)
            put(self.folder / f"{part}energy", f"{self.joules[part]} J {stamp_us} us")
            put(self.folder / f"{part}power", f"{watts:.0f} W {stamp_us} us")
            put(self.folder / f"{part}power_cap", f"0 W {stamp_us} us")
        increase(self.folder / "freshness", 1)


def nvidia_x86(root: Path, _: Path) -> None:
    """Make a node with two sockets and NVIDIA GPUs, whose driver has no files here."""
    Powercap(root / "class/powercap")
    for index in range(4):
        put(root / f"bus/pci/devices/0000:{index:02x}:00.0/class", "0x030200")


def lumi(root: Path, _: Path) -> None:
    """Make a node of LUMI or Frontier: Cray EX, four boards of two AMD GPUs each."""
    machine = AmdMachine(root.parent, "MI250X", 8, library=False)
    for gpu in machine.gpus:
        put(root / f"bus/pci/devices/{gpu.bus_id}/class", "0x038000")
    PmCounters(root)
    put(root / "bus/pci/devices/0000:01:00.0/class", "0x030000")  # the screen of the BMC


def aurora(root: Path, _: Path) -> None:
    """Make a node of Aurora: two Xeon Max and six Intel Max GPUs."""
    Powercap(root / "class/powercap")
    IntelCards(root, 6)


def grace_hopper(root: Path, _: Path) -> None:
    """Make a node of JUPITER: four Grace Hopper modules."""
    AcpiMeters(root, grace_names(4))


def virtual_machine(root: Path, _: Path) -> None:
    """Make a virtual machine: no counter, and a hwmon chip that has no power."""
    put(root / "class/hwmon/hwmon0/name", "acpitz")
    (root / "class/powercap").mkdir(parents=True)


MACHINES: dict[str, Callable[[Path, Path], None]] = {
    "nvidia": nvidia_x86,
    "lumi": lumi,
    "aurora": aurora,
    "grace-hopper": grace_hopper,
    "virtual-machine": virtual_machine,
}
