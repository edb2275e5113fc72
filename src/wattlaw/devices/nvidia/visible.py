"""Which GPUs are ours: CUDA_VISIBLE_DEVICES and Slurm's variables, read as CUDA reads them.

CUDA's rules are in the CUDA C++ Programming Guide, appendix on environment variables. Integers
are CUDA ordinals, while NVML counts in the order of PCI bus ids. The two agree if
``CUDA_DEVICE_ORDER`` is ``PCI_BUS_ID``, and if all GPUs are of one model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wattlaw.errors import NotAvailable

_VISIBLE = "CUDA_VISIBLE_DEVICES"
#: The values of CUDA_VISIBLE_DEVICES that Slurm sets for a job without GPUs.
_NO_GPUS = ("", "NoDevFiles")
#: No machine has more GPUs than this many digits can count.
_MAX_DIGITS = 4


@dataclass(frozen=True)
class NvidiaGpu:
    """One physical GPU. The machine lists its GPUs in the order of PCI bus ids."""

    uuid: str
    name: str
    minor: int | None = None
    mig_uuids: tuple[str, ...] = ()
    is_shared: bool = False  # in MIG mode: others may use the rest of it
    handle: Any = None  # of the driver


@dataclass(frozen=True)
class GpuSelection:
    """The GPUs that are ours, each once, and notes about the selection."""

    gpus: tuple[NvidiaGpu, ...]
    notes: tuple[str, ...] = ()


def select_gpus(gpus: Sequence[NvidiaGpu], environ: Mapping[str, str]) -> GpuSelection:
    """Return the GPUs that a process with this environment may use.

    Raises ``NotAvailable`` if the environment has ordinals on a machine with several models, which
    are ambiguous.
    """
    visible = environ.get(_VISIBLE)
    job = _job_minors(environ)
    if visible is None:
        return _select_by_job(gpus, environ, job)
    selection = _select_by_list(gpus, visible, environ)
    if job is None or len(gpus) <= len(job):
        return selection  # the job's cgroup hides other GPUs
    own = tuple(gpu for gpu in selection.gpus if gpu.minor in job)
    others = len(selection.gpus) - len(own)
    note = f"{_VISIBLE} names {others} GPU(s) that this Slurm job does not hold"
    return GpuSelection(own, (*selection.notes, note) if others else selection.notes)


def _select_by_job(
    gpus: Sequence[NvidiaGpu], environ: Mapping[str, str], job: frozenset[int] | None
) -> GpuSelection:
    """Return all GPUs, or inside a Slurm job those of the job."""
    if "SLURM_JOB_ID" not in environ:
        return GpuSelection(tuple(gpus))
    if job is None:
        note = f"this Slurm job holds no GPU; set {_VISIBLE} to name GPUs all the same"
        return GpuSelection((), (note,))
    own = [gpu for gpu in gpus if gpu.minor in job]
    return GpuSelection(tuple(gpus if len(gpus) <= len(job) else own))


def _job_minors(environ: Mapping[str, str]) -> frozenset[int] | None:
    """Return the minor numbers of a Slurm job's GPUs on this node, None if they are unknown."""
    if "SLURM_JOB_ID" not in environ:
        return None
    gpus = environ.get("SLURM_STEP_GPUS") or environ.get("SLURM_JOB_GPUS")
    if not gpus:
        return None
    minors: set[int] = set()
    for part in gpus.split(","):
        ends = part.strip().split("-", 1)  # such as 4, or 4-7
        first, last = _ordinal(ends[0]), _ordinal(ends[-1])
        if first is None or last is None:
            return None
        minors |= set(range(first, last + 1))
    return frozenset(minors)


def _ordinal(text: str) -> int | None:
    """Return a number as CUDA and Slurm write one, None for anything else."""
    is_number = text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS
    return int(text) if is_number else None


def _select_by_list(
    gpus: Sequence[NvidiaGpu], visible: str, environ: Mapping[str, str]
) -> GpuSelection:
    if visible.strip() in _NO_GPUS:
        return GpuSelection((), (f"{_VISIBLE} is {visible!r}: no GPU is visible",))
    selected: dict[str, NvidiaGpu] = {}
    for entry in (part.strip() for part in visible.split(",")):
        gpu = _find(gpus, entry, environ)
        if gpu is None:  # as for CUDA, the list ends here
            note = f"{_VISIBLE}: {entry!a} names no GPU here; it and what follows is not visible"
            return GpuSelection(tuple(selected.values()), (note,))
        selected[gpu.uuid] = gpu
    return GpuSelection(tuple(selected.values()))


def _find(gpus: Sequence[NvidiaGpu], entry: str, environ: Mapping[str, str]) -> NvidiaGpu | None:
    """Return the GPU of one entry of the list; None if there is none, or several."""
    ordinal = _ordinal(entry)
    if ordinal is not None:
        is_ordered = environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
        if not is_ordered and len({gpu.name for gpu in gpus}) > 1:
            raise NotAvailable(
                f"{_VISIBLE} has the ordinal {entry} on a machine with several GPU models; "
                "set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name GPUs by UUID"
            )
        return gpus[ordinal] if ordinal < len(gpus) else None
    matches = []
    if entry.startswith("MIG-GPU-"):  # MIG-<GPU's UUID>/<GPU instance>/<compute instance>
        uuid = entry.removeprefix("MIG-").split("/")[0]
        matches = [gpu for gpu in gpus if gpu.uuid == uuid]
    elif entry.startswith("MIG-"):
        matches = [gpu for gpu in gpus if any(uuid.startswith(entry) for uuid in gpu.mig_uuids)]
    elif entry.startswith("GPU-"):
        matches = [gpu for gpu in gpus if gpu.uuid.startswith(entry)]
    return matches[0] if len(matches) == 1 else None
