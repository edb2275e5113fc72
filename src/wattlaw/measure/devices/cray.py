"""Energy of an HPE Cray node, its processors and memory, by ``/sys/cray/pm_counters``.

A file has a value, its unit and a time, such as ``1234 J 1500000000000000 us``. The blade's
controller updates all files about ten times a second and then increments ``freshness``, so files
are of one moment if ``freshness`` is the same before and after them (HPE Cray Supercomputing User
Environment, "User Access to Compute Node Power Data").
"""

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
_NAME = re.compile(r"(?:(cpu|memory)(\d*)_)?energy")
_VALUE = re.compile(r"(\d{1,18}) J(?: \d{1,18} us)?")
_PARTS: Mapping[str, tuple[Kind, str]] = {
    "cpu": ("cpu", "processors"),
    "memory": ("dram", "memory"),
}
_NODE_CONTAINS: tuple[Kind, ...] = ("module", "gpu", "cpu", "dram")


def counters() -> Path:
    return sysfs.root() / "cray/pm_counters"


class CrayMeter(FileMeter):
    """The node, and its processors and memory, which complement other meters."""

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
        sources = [
            FileSource(_device(match, 1 / hz), folder / match[0], scale=1.0, parse=_parse)
            for match in matches
            # Parts of what is counted are left out.
            if not (match[1] == "cpu" and match[2] and "cpu_energy" in names)
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


def _device(match: re.Match[str], refresh_s: float) -> Device:
    facts: dict[str, Any] = {
        "energy_counter": "pm_counters", "counter_refresh_s": refresh_s, "is_shared": shares_node()
    }  # fmt: skip
    if match[1] is None:
        facts |= {"scope": "node with all its parts"}
        return Device("cray-node", "node", "node by pm_counters", facts, _NODE_CONTAINS)
    kind, name = _PARTS[match[1]]
    name = f"{name} {match[2]}".strip()
    facts |= {"scope": f"{name} of the node", "complements": True}
    return Device(f"cray-{match[1]}{match[2]}", kind, f"{name} by pm_counters", facts)
