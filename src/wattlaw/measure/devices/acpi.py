"""Power by ACPI power meters: of NVIDIA Grace processors and their modules, or of the node.

Each meter (hwmon chip ``power_meter``, driver acpi_power_meter) has ``power1_average`` in
microwatts. Those of Grace name their channel in ``power1_oem_info``, such as ``Grace Power Socket
0``. Channels overlap: Module includes Grace and the GPU, and Grace includes CPU and SysIO (NVIDIA
Grace Performance Tuning Guide, "Power Telemetry"). Only the outermost channels count. A single
meter without a channel is that of the node.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Self

from wattlaw.common.errors import NotAvailable
from wattlaw.measure.devices import cray, sysfs
from wattlaw.measure.devices.file_meter import FileMeter, FileSource, shares_node
from wattlaw.measure.devices.meter import Device, Target
from wattlaw.store.streams import Kind

#: Of the node, whose reading can take some time.
_NODE_PERIOD_S = 1.0
_CHANNEL = re.compile(r"(.+) Power Socket (\d+)")
_BOARD: tuple[Kind, ...] = ("gpu", "cpu", "dram")


def _power_meters() -> Iterator[tuple[Path, str | None, int]]:
    """Yield the folder of each meter, its channel if it has one, and the channel's socket."""
    for name, path in sysfs.hwmons(sysfs.root() / "class/hwmon"):
        if name != "power_meter":
            continue
        # Older kernels have it in the ACPI device.
        place = path if (path / "power1_average").exists() else path / "device"
        if not sysfs.read_optional(place / "power1_is_battery"):
            match = _CHANNEL.fullmatch(sysfs.optional_text(place / "power1_oem_info") or "")
            yield (place, match[1], int(match[2])) if match else (place, None, 0)


def _source(folder: Path, device: Device) -> FileSource:
    interval_ms = sysfs.read_optional(folder / "power1_average_interval")
    resolution_s = interval_ms and interval_ms * 1e-3
    facts = {"power": "acpi", "resolution_s": resolution_s, "is_shared": shares_node()}
    device = replace(device, facts={**device.facts, **facts})
    return FileSource(device, folder / "power1_average", "power_w")


class GraceMeter(FileMeter):
    """The modules and processors, each by its outermost channel."""

    @classmethod
    def open(cls, target: Target) -> Self:
        sockets = defaultdict[int, dict[str, Path]](dict)
        for folder, channel, socket in _power_meters():
            if channel is not None:
                sockets[socket][channel] = folder
        sources = [
            source
            for socket, channels in sorted(sockets.items())
            for source in _outermost(channels, socket)
        ]
        if not sources:
            raise NotAvailable("no ACPI power meter of an NVIDIA Grace processor")
        intervals_s = [source.device.facts["resolution_s"] for source in sources]
        slowest_s = max((s for s in intervals_s if isinstance(s, float)), default=0.0)
        return cls(sources, max(target.period_s, slowest_s))


def _outermost(channels: Mapping[str, Path], socket: int) -> Iterator[FileSource]:
    """Yield the channels of one socket that count; the other ones are parts of them."""
    processor = next((name for name in ("Grace", "CPU") if name in channels), None)
    if "Module" in channels:
        facts = {"scope": f"module of socket {socket}: processor, memory and its GPU"}
        module = Device(f"module-{socket}", "module", f"module of socket {socket}", facts, _BOARD)
        yield _source(channels["Module"], module)
    if processor is not None:
        parts = ", ".join(sorted({*channels} - {"Module", processor})) or None
        is_all = processor == "Grace"
        what = "cores, memory and system I/O" if is_all else "cores"
        of_processor = {"scope": f"{what} of socket {socket}", "parts": parts}
        name, contains = f"Grace processor of socket {socket}", _BOARD[2:] if is_all else ()
        device = Device(f"grace-{socket}", "cpu", name, of_processor, contains)
        yield _source(channels[processor], device)


class NodePowerMeter(FileMeter):
    """The node, by its only power meter."""

    @classmethod
    def open(cls, target: Target) -> Self:
        if sysfs.optional_text(cray.counters() / "energy"):
            raise NotAvailable("not used: the node's energy is read from pm_counters")
        meters = [*_power_meters()]
        if len(meters) != 1 or meters[0][1] is not None:
            raise NotAvailable("no ACPI power meter of the node, or several of unknown scopes")
        facts = {"scope": "node by its ACPI power meter, as the firmware defines it"}
        device = Device("node-acpi", "node", "node by ACPI", facts, ("module", *_BOARD))
        return cls([_source(meters[0][0], device)], max(target.period_s, _NODE_PERIOD_S))
