"""Meters of devices whose energy or power the kernel shows in one file each.

A counter that restarts at 0 after a known value is corrected. A counter that goes back otherwise is
reported as it is, so that the energy of a window across it gets a fault. A missing file is
not read again. A reading with a transient error is repeated.
"""

import errno
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from wattlaw.common.errors import NotAvailable, NotPermitted
from wattlaw.common.text import collapse_whitespace
from wattlaw.measure.devices import sysfs
from wattlaw.measure.devices.meter import Device, Meter, Sample

#: No device draws more. A decrease that would mean more is no wrap-around.
MAX_W = 5000.0
_MIN_INTERVAL_S = 0.1
#: Transient errors, such as those during the reset of a GPU.
_TRANSIENT = frozenset(
    {errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.EIO, errno.ENODATA, errno.ETIMEDOUT}
)
_MAX_FAILURES = 10
_CPUS = re.compile(r"(?<![0-9x])[0-9]{1,6}(?![0-9])")
_EXCLUSIVE = ("SBATCH_EXCLUSIVE", "SLURM_EXCLUSIVE")


@dataclass(eq=False)
class WrappingCounter:
    """A counter, corrected where it restarts at 0 after a known value. It detects one wrap-around
    between two readings; with a reading a second there are never two."""

    wraps_at: int | None  # None: unknown
    raw: int = 0
    offset: int = 0
    read_s: float = 0.0

    def corrected(self, raw: int, scale: float) -> float:
        """Return the energy since some start; ``scale`` is the joules of one unit."""
        now_s = time.monotonic()
        if self.wraps_at is not None and raw > self.wraps_at:
            self.wraps_at = None  # the stated range is wrong
        if raw < self.raw and self.wraps_at is not None:
            increase_j = (self.wraps_at - self.raw + raw) * scale
            if increase_j <= MAX_W * max(now_s - self.read_s, _MIN_INTERVAL_S):
                self.offset += self.wraps_at
        self.raw, self.read_s = raw, now_s
        return (raw + self.offset) * scale


@dataclass(eq=False)
class FileSource:
    device: Device
    path: Path
    column: Literal["energy_j", "power_w"] = "energy_j"
    scale: float = 1e-6  # joules or watts of one unit in the file
    wraps_at: int | None = None  # after this value the counter restarts at 0; None: unknown
    parse: Callable[[str], int] = sysfs.parse_number  # raises ValueError
    problem: str | None = None  # why it is no longer read
    failures: int = 0

    def __post_init__(self) -> None:
        self.counter = WrappingCounter(self.wraps_at)

    def value(self) -> float:
        return self.counter.corrected(self.parse(sysfs.read_text(self.path)), self.scale)

    def read(self) -> Sample | None:
        if self.problem is not None:
            return None
        t_ns = time.time_ns()
        try:
            value = self.value()
        except (OSError, ValueError) as error:
            self.failures += 1
            is_transient = isinstance(error, OSError) and error.errno in _TRANSIENT
            if not is_transient or self.failures >= _MAX_FAILURES:
                reason = collapse_whitespace(str(error))
                self.problem = f"{self.device.id}: no longer read: {reason}"
            return None
        self.failures = 0
        sample = Sample(self.device.id, self.device.kind, t_ns, power_source="measured")
        if self.column == "power_w":
            return sample._replace(power_w=value)
        return sample._replace(energy_j=value)


class FileMeter(Meter):
    def __init__(
        self,
        sources: Sequence[FileSource],
        period_s: float,
        permit: str | None = None,
        failed: Sequence[Device] = (),
    ) -> None:
        """Read each source once; raise the error of the first one if none can be read."""
        self.sources, self.period_s, self._failed = list[FileSource](), period_s, list(failed)
        errors = []
        for source in sources:
            try:
                source.value()
                self.sources.append(source)
            except (OSError, ValueError) as reason:
                errors.append(reading_error(source.path, reason, permit))
                self._failed.append(failed_device(source.device, errors[-1]))
        if errors and not self.sources:
            raise errors[0]

    def devices(self) -> list[Device]:
        return [source.device for source in self.sources] + self._failed

    def read(self, *, last: bool = False) -> list[Sample]:  # noqa: ARG002 - nothing is buffered
        return [sample for source in self.sources if (sample := source.read()) is not None]

    def problems(self) -> list[str]:
        return [source.problem for source in self.sources if source.problem is not None]


def reading_error(path: Path, error: Exception, permit: str | None = None) -> NotAvailable:
    """``NotPermitted`` if only root can read the file. ``permit`` is the command with which an
    administrator allows it, by default for this file of every device."""
    if isinstance(error, PermissionError):
        if permit is None:
            folder = re.sub(r"[0-9]+", "*", str(path.parent.relative_to(sysfs.root())))
            permit = f"chmod o+r {sysfs.root() / folder / path.name}"
        return NotPermitted(
            f"{path} can be read by root only; an administrator can allow it with: {permit}"
        )
    reason = (isinstance(error, OSError) and error.strerror) or str(error)
    return NotAvailable(f"{path} cannot be read: {collapse_whitespace(reason)}")


def failed_device(device: Device, reason: object) -> Device:
    return replace(device, facts={**device.facts, "failed": str(reason)})


def shares_node(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether a Slurm job may share its node: it has neither requested the node for itself
    nor all processors: ``SLURM_CPUS_ON_NODE`` are those of the job or its step on this node, and
    ``SLURM_JOB_CPUS_PER_NODE`` of the job on each node, such as ``64(x2),32`` (sbatch(1))."""
    if "SLURM_JOB_ID" not in environ or any(name in environ for name in _EXCLUSIVE):
        return False
    nodes = _CPUS.findall(environ.get("SLURM_JOB_CPUS_PER_NODE", ""))
    counts = [min(map(int, nodes), default=0)]
    counts += map(int, _CPUS.findall(environ.get("SLURM_CPUS_ON_NODE", "")))
    return max(counts) < (os.cpu_count() or 1)
