"""Energy of an HPE Cray node and its parts, by the counters in ``/sys/cray/pm_counters``.

A file has a value, its unit and a time, such as ``1234 J 1500000000000000 us``. The blade's
controller updates all files about ten times a second and then increments ``freshness``, so files
are of one moment if ``freshness`` is the same before and after them (HPE Cray Supercomputing User
Environment, "User Access to Compute Node Power Data").
"""

import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from wattlaw.common.errors import NotAvailable
from wattlaw.measure.devices import sysfs
from wattlaw.measure.devices.file_meter import (
    FileMeter,
    FileSource,
    reading_error,
    shares_node,
)
from wattlaw.measure.devices.meter import Device, Sample, Target
from wattlaw.store.streams import Kind

_DEFAULT_HZ = 10
#: Tries to read all files between two updates. A try takes less than a hundredth of a period.
_TRIES = 5
#: The run has a note if the counters are not updated for this long.
_STALE_S = 5.0
_NAME = re.compile(r"(?:(cpu|memory|accel)(\d*)_)?energy")
_VALUE = re.compile(r"(\d{1,18}) J(?: \d{1,18} us)?")
_PARTS: Mapping[str, tuple[Kind, str]] = {
    "cpu": ("cpu", "processors"),
    "memory": ("dram", "memory"),
    "accel": ("gpu", "accelerator"),
}
_NODE_CONTAINS: tuple[Kind, ...] = ("module", "gpu", "cpu", "dram")
_VISIBLE = (
    "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ZE_AFFINITY_MASK",
)  # fmt: skip
#: PCI classes of accelerators: 3D controllers, other display controllers, and processing ones. The
#: screen of a server's management (0300) is none of them.
_ACCELERATORS = ("0x0302", "0x0380", "0x1200")


def counters() -> Path:
    return sysfs.root() / "cray/pm_counters"


class CrayMeter(FileMeter):
    """The node, and its processors, memory and accelerators, which complement other meters."""

    def __init__(self, sources: Sequence[FileSource], period_s: float, permit: str) -> None:
        super().__init__(sources, period_s, permit)
        self._fresh = -1  # the freshness of the last samples
        self._fresh_s = time.monotonic()
        self._stale: str | None = None

    @classmethod
    def open(cls, target: Target) -> Self:
        folder = counters()
        if not folder.is_dir():
            raise NotAvailable(f"{folder} does not exist (not an HPE Cray machine)")
        permit = f"chmod -R o+rX {folder}"
        try:
            names = {path.name for path in folder.iterdir()}
            sysfs.read_text(folder / "freshness")
        except (OSError, ValueError) as error:
            raise reading_error(folder, error, permit) from None
        hz = sysfs.read_optional(folder / "raw_scan_hz") or _DEFAULT_HZ
        matches = [match for name in sorted(names) if (match := _NAME.fullmatch(name))]
        has_accelerators = any(match[1] == "accel" and match[2] for match in matches)
        sources = [
            FileSource(_device(match, 1 / hz, target), folder / match[0], scale=1.0, parse=_parse)
            for match in matches
            # Sums of what is counted, and parts of it, are left out.
            if not (match[0] == "accel_energy" and has_accelerators)
            and not (match[1] == "cpu" and match[2] and "cpu_energy" in names)
        ]
        if not sources:
            raise NotAvailable(f"no energy counter in {folder}")
        return cls(sources, max(target.period_s, 1 / hz), permit)

    def read(self, *, last: bool = False) -> list[Sample]:
        """Return the counters of one moment; none if they are those of the last reading."""
        freshness = counters() / "freshness"
        for _ in range(_TRIES):
            fresh = sysfs.read_optional(freshness)
            if fresh is not None and fresh == self._fresh:
                break
            samples = super().read(last=last)
            if fresh is not None and sysfs.read_optional(freshness) == fresh:
                self._fresh, self._fresh_s, self._stale = fresh, time.monotonic(), None
                return samples
        if time.monotonic() - self._fresh_s > _STALE_S:
            self._stale = (
                f"pm_counters: not updated for {_STALE_S:g} s; energy is missing until the next "
                "update"
            )
        return []

    def problems(self) -> list[str]:
        return [*super().problems(), *([self._stale] if self._stale else [])]


def _parse(text: str) -> int:
    match = _VALUE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:20]!a} is not an energy in J")
    return int(match[1])


def _device(match: re.Match[str], refresh_s: float, target: Target) -> Device:
    facts: dict[str, Any] = {"energy_counter": "pm_counters", "counter_refresh_s": refresh_s}
    if match[1] is None:
        facts |= {"scope": "node with all its parts", "is_shared": shares_node()}
        return Device("cray-node", "node", "node by pm_counters", facts, _NODE_CONTAINS)
    kind, name = _PARTS[match[1]]
    name = f"{name} {match[2]}".strip()
    is_shared = shares_node() if kind != "gpu" else not _sees_all_gpus(target)
    facts |= {"scope": f"{name} of the node", "complements": True, "is_shared": is_shared}
    return Device(f"cray-{match[1]}{match[2]}", kind, f"{name} by pm_counters", facts)


def _sees_all_gpus(target: Target) -> bool:
    """It is not known which counter belongs to which accelerator, and a board may have two."""
    listed = target.gpus
    for name in _VISIBLE:
        if listed is None and name in os.environ:
            listed = tuple(os.environ[name].split(","))
    if listed is None:
        return not shares_node()
    paths = (sysfs.root() / "bus/pci/devices").glob("*/class")
    classes = (sysfs.optional_text(path) or "" for path in paths)
    return len(listed) >= sum(name.startswith(_ACCELERATORS) for name in classes)
