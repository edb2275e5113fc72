"""Power by ACPI power meters: of NVIDIA Grace processors and their modules, or of the node.

Each meter (hwmon chip ``power_meter``, driver acpi_power_meter) has ``power1_average`` in
microwatts. Those of Grace name their channel in ``power1_oem_info``, such as ``Grace Power Socket
0``. Channels overlap: Module includes Grace and the GPU, and Grace includes CPU and SysIO (NVIDIA
Grace Performance Tuning Guide, "Power Telemetry"). Only the outermost channels count. A single
meter without a channel is that of the node.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from wattlaw.common.errors import NotAvailable
from wattlaw.measure.devices import cray, sysfs
from wattlaw.measure.devices.file_meter import FileMeter, FileSource, shares_node
from wattlaw.measure.devices.meter import Device, Facts, Target
from wattlaw.store.streams import Kind

#: Of the node, whose reading can take some time.
_NODE_PERIOD_S = 1.0
_CHANNEL = re.compile(r"(.+) Power Socket (\d+)")


@dataclass(frozen=True)
class PowerMeter:
    folder: Path
    channel: str | None = None
    socket: int = 0

    def source(self, device: Device) -> FileSource:
        return FileSource(device, self.folder / "power1_average", "power_w")

    @property
    def facts(self) -> Facts:
        interval_ms = sysfs.read_optional(self.folder / "power1_average_interval")
        resolution_s = interval_ms and interval_ms * 1e-3
        return {"power": "acpi", "resolution_s": resolution_s, "is_shared": shares_node()}


def power_meters() -> list[PowerMeter]:
    meters = []
    for chip in sysfs.hwmons(sysfs.root() / "class/hwmon"):
        if chip.name != "power_meter":
            continue
        place = chip.path
        if not (place / "power1_average").exists():  # older kernels: in the ACPI device
            place = place / "device"
        if sysfs.read_optional(place / "power1_is_battery"):
            continue
        try:
            match = _CHANNEL.fullmatch(sysfs.read_text(place / "power1_oem_info"))
        except (OSError, ValueError):
            match = None
        channel = (match[1], int(match[2])) if match else ()
        meters.append(PowerMeter(place, *channel))
    return meters


class _AcpiMeter(FileMeter):
    def __init__(self, sources: Sequence[FileSource], period_s: float) -> None:
        path = re.sub(r"hwmon[0-9]+", "hwmon*", str(sources[0].path))
        super().__init__(sources, period_s, f"chmod o+r {path}")


class GraceMeter(_AcpiMeter):
    """The modules and processors, each by its outermost channel."""

    @classmethod
    def open(cls, target: Target) -> Self:
        meters = [meter for meter in power_meters() if meter.channel is not None]
        sources = []
        for socket in sorted({meter.socket for meter in meters}):
            sources += _sources({m.channel or "": m for m in meters if m.socket == socket}, socket)
        if not sources:
            raise NotAvailable("no ACPI power meter of an NVIDIA Grace processor")
        meter = cls(sources, target.period_s)
        intervals_s = [source.device.facts["resolution_s"] for source in meter.sources]
        slowest_s = max((s for s in intervals_s if isinstance(s, float)), default=0.0)
        meter.period_s = max(target.period_s, slowest_s)
        return meter


def _sources(channels: dict[str, PowerMeter], socket: int) -> list[FileSource]:
    """Return the channels of one socket that count; the other ones are parts of them."""
    processor = next((name for name in ("Grace", "CPU") if name in channels), None)
    parts = ", ".join(sorted({*channels} - {"Module", processor})) or None
    sources = []
    if "Module" in channels:
        module = channels["Module"]
        scope = f"module of socket {socket}: processor, memory and its GPU"
        facts: Facts = {"scope": scope, **module.facts}
        name = f"module of socket {socket}"
        device = Device(f"module-{socket}", "module", name, facts, ("gpu", "cpu", "dram"))
        sources.append(module.source(device))
    if processor is not None:
        meter, is_all = channels[processor], processor == "Grace"
        what = "cores, memory and system I/O" if is_all else "cores"
        facts = {"scope": f"{what} of socket {socket}", **meter.facts, "parts": parts}
        name = f"Grace processor of socket {socket}"
        device = Device(f"grace-{socket}", "cpu", name, facts, ("dram",) if is_all else ())
        sources.append(meter.source(device))
    return sources


class NodePowerMeter(_AcpiMeter):
    """The node, by its only power meter."""

    @classmethod
    def open(cls, target: Target) -> Self:
        if sysfs.optional_text(cray.counters() / "energy"):
            raise NotAvailable("not used: the node's energy is read from pm_counters")
        meters = power_meters()
        if len(meters) != 1 or meters[0].channel is not None:
            raise NotAvailable("no ACPI power meter of the node, or several of unknown scopes")
        scope = "node by its ACPI power meter, as the firmware defines it"
        facts = {"scope": scope, **meters[0].facts}
        contains: tuple[Kind, ...] = ("module", "gpu", "cpu", "dram")
        device = Device("node-acpi", "node", "node by ACPI", facts, contains)
        return cls([meters[0].source(device)], max(target.period_s, _NODE_PERIOD_S))
