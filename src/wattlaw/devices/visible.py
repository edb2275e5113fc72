"""The GPUs that a process may use, by variables with lists of GPUs and by its Slurm job.

A list ends at its first invalid entry: CUDA Programming Guide, CUDA_VISIBLE_DEVICES; ROCr,
``amd_filter_device.cpp``; HIP, ``rocdevice.cpp``. They differ in a GPU that is listed twice. CUDA's
driver then shows none, and reads entries of one kind only; the guide does not say so, but PyTorch
follows it (``torch.cuda._parse_visible_devices``, with tests). The list of ROCr ends there, and HIP
ignores the repetition.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar

#: The values that Slurm sets for a job without GPUs.
_NO_GPUS = ("", "NoDevFiles")
#: No machine has more GPUs than this many digits can count.
_MAX_DIGITS = 4
#: What reads a variable.
Runtime = Literal["CUDA", "ROCr", "HIP"]


class Gpu(Protocol):
    """A GPU as Slurm and the variables name it."""

    @property
    def uuid(self) -> str:
        """Return an id that stays the same between runs."""

    @property
    def minor(self) -> int | None:
        """Return the number by which Slurm names it."""


G = TypeVar("G", bound=Gpu)


@dataclass(frozen=True)
class GpuSelection(Generic[G]):
    """The GPUs that this process may use, each once, and notes about the selection."""

    gpus: tuple[G, ...]
    notes: tuple[str, ...] = ()


def select(
    gpus: Sequence[G],
    environ: Mapping[str, str],
    variables: Mapping[str, Runtime],
    find: Callable[[Sequence[G], str], G | None],
) -> GpuSelection[G]:
    """Return the GPUs that a process with this environment may use.

    Each of the variables that is set selects from the GPUs that the one before it has left, and
    without any it is the Slurm job that selects. ``find`` returns the GPU of one entry of a list.
    """
    job = job_minors(environ)
    present = [name for name in variables if name in environ]
    if not present:
        return _select_by_job(gpus, environ, job, next(iter(variables)))
    selection = GpuSelection(tuple(gpus))
    for name in present:
        step = _select_by_list(selection.gpus, name, environ[name], find, variables[name])
        selection = GpuSelection(step.gpus, (*selection.notes, *step.notes))
    if job is None or len(gpus) <= len(job):
        return selection  # the job's cgroup hides other GPUs
    own = tuple(gpu for gpu in selection.gpus if gpu.minor in job)
    others = len(selection.gpus) - len(own)
    note = f"{present[-1]} lists {others} GPU(s) that are not allocated to this Slurm job"
    return GpuSelection(own, (*selection.notes, note) if others else selection.notes)


def _select_by_job(
    gpus: Sequence[G], environ: Mapping[str, str], job: frozenset[int] | None, variable: str
) -> GpuSelection[G]:
    """Return all GPUs, or inside a Slurm job those of the job."""
    if "SLURM_JOB_ID" not in environ:
        return GpuSelection(tuple(gpus))
    if job is None:
        note = f"this Slurm job has no GPU; set {variable} to use GPUs anyway"
        return GpuSelection((), (note,))
    own = [gpu for gpu in gpus if gpu.minor in job]
    return GpuSelection(tuple(gpus if len(gpus) <= len(job) else own))


def _select_by_list(
    gpus: Sequence[G],
    variable: str,
    visible: str,
    find: Callable[[Sequence[G], str], G | None],
    runtime: Runtime,
) -> GpuSelection[G]:
    if visible.strip() in _NO_GPUS:
        return GpuSelection((), (f"{variable} is {visible!r}: no GPU is visible",))
    entries = [entry.strip() for entry in visible.split(",")]
    selected: dict[str, G] = {}
    seen = set[str]()
    for entry in entries:
        is_of_kind = runtime != "CUDA" or _kind(entry) == _kind(entries[0])
        gpu = find(gpus, entry) if is_of_kind else None
        device = entry if gpu is None or _kind(entry) == "MIG" else gpu.uuid  # or one of its parts
        if device in seen and runtime == "CUDA":
            note = f"{variable}: {entry!a} is listed twice, so CUDA shows no GPU"
            return GpuSelection((), (note,))
        if gpu is None or (device in seen and runtime == "ROCr"):
            why = "matches no GPU" if gpu is None else "is listed twice"
            note = f"{variable}: {entry!a} {why}; GPUs from here on are not visible"
            return GpuSelection(tuple(selected.values()), (note,))
        seen.add(device)
        selected[gpu.uuid] = gpu
    return GpuSelection(tuple(selected.values()))


def _kind(entry: str) -> str:
    return next((kind for kind in ("GPU", "MIG") if entry.startswith(f"{kind}-")), "integer")


def job_minors(environ: Mapping[str, str]) -> frozenset[int] | None:
    """Return the numbers of a Slurm job's GPUs on this node, None if they are unknown."""
    if "SLURM_JOB_ID" not in environ:
        return None
    numbers = environ.get("SLURM_STEP_GPUS") or environ.get("SLURM_JOB_GPUS") or ""
    minors = parse_minors(numbers)
    return None if minors is None else frozenset(minors)


def parse_minors(numbers: str) -> list[int] | None:
    """Return the numbers of a list of GPUs as Slurm writes it (``0,4-7``), None if it is none."""
    minors: list[int] = []
    for part in numbers.split(","):
        ends = part.strip().split("-", 1)
        first, last = parse_ordinal(ends[0]), parse_ordinal(ends[-1])
        if first is None or last is None:
            return None
        minors += range(first, last + 1)
    return minors


def parse_ordinal(text: str) -> int | None:
    """Return a number as ROCm and Slurm write one, None for anything else."""
    is_number = text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS
    return int(text) if is_number else None
