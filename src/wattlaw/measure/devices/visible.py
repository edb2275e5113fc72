"""The GPUs that a process may use, by variables with lists of GPUs and by its Slurm job.

A list ends at its first invalid entry: CUDA Programming Guide, CUDA_VISIBLE_DEVICES; ROCr,
``amd_filter_device.cpp``; HIP, ``rocdevice.cpp``. They differ in a GPU that is listed twice. CUDA's
driver then shows none, and reads entries of one kind only; the guide does not say so, but PyTorch
follows it (``torch.cuda._parse_visible_devices``, with tests). The list of ROCr ends there, and HIP
ignores the repetition.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, Protocol, TypeVar

#: The values that Slurm sets for a job without GPUs.
_NO_GPUS = ("", "NoDevFiles")
#: No machine has more GPUs than this many digits can count.
_MAX_DIGITS = 4
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
    gpus: tuple[G, ...]
    notes: tuple[str, ...] = ()
    #: The GPU of each listed device, by the device's id: of the GPU, or of a MIG instance of it.
    devices: Mapping[str, G] = field(default_factory=dict)


#: Returns the GPU of one entry of a list, and the id of the entry's device.
Find = Callable[[Sequence[G], str], tuple[G, str] | None]


def select(
    gpus: Sequence[G], environ: Mapping[str, str], variables: Mapping[str, Runtime], find: Find[G]
) -> GpuSelection[G]:
    """Each of the variables that is set selects from the GPUs that the one before it has left, and
    without any it is the Slurm job that selects."""
    job = job_entries(environ)
    present = [name for name in variables if name in environ]
    if not present and "SLURM_JOB_ID" in environ and job is None:
        note = f"this Slurm job has no GPU; set {next(iter(variables))} to use GPUs anyway"
        return GpuSelection((), (note,))
    selection = GpuSelection(tuple(gpus))
    for name in present:
        step = _select_by_list(selection.gpus, name, environ[name], find, variables[name])
        selection = GpuSelection(step.gpus, (*selection.notes, *step.notes), step.devices)
    if job is None or len(gpus) <= len(job):
        return selection  # the job's cgroup hides other GPUs
    # Slurm 25.11 lists UUIDs, but numbers the job's GPUs by their place in its configuration, which
    # may not be that of the device files; its numbers of MIG instances are no device files at all.
    kind = _kind(environ[present[-1]]) if present else "integer"
    if kind == "MIG" or (kind == "GPU" and len(selection.gpus) <= len(job)):
        return selection
    found = [find(gpus, entry) for entry in job if isinstance(entry, str)]
    listed = [gpu_and_id[0].uuid for gpu_and_id in found if gpu_and_id is not None]
    own = tuple(gpu for gpu in selection.gpus if gpu.minor in job or gpu.uuid in listed)
    devices = {device: gpu for device, gpu in selection.devices.items() if gpu in own}
    others = len(selection.gpus) - len(own)
    if not present or not others:
        return GpuSelection(own, selection.notes, devices)
    note = f"{present[-1]} lists {others} GPU(s) that are not allocated to this Slurm job"
    return GpuSelection(own, (*selection.notes, note), devices)


def _select_by_list(
    gpus: Sequence[G], variable: str, visible: str, find: Find[G], runtime: Runtime
) -> GpuSelection[G]:
    if visible.strip() in _NO_GPUS:
        return GpuSelection((), (f"{variable} is {visible!r}: no GPU is visible",))
    entries = [entry.strip() for entry in visible.split(",")]
    devices: dict[str, G] = {}
    notes: tuple[str, ...] = ()
    for entry in entries:
        is_of_kind = runtime != "CUDA" or _kind(entry) == _kind(entries[0])
        found = find(gpus, entry) if is_of_kind else None
        is_twice = found is not None and found[1] in devices
        if is_twice and runtime == "CUDA":
            note = f"{variable}: {entry!a} is listed twice, so CUDA shows no GPU"
            return GpuSelection((), (note,))
        if found is None or (is_twice and runtime == "ROCr"):
            why = "matches no GPU" if found is None else "is listed twice"
            notes = (f"{variable}: {entry!a} {why}; GPUs from here on are not visible",)
            break
        devices[found[1]] = found[0]
    return GpuSelection(tuple({gpu.uuid: gpu for gpu in devices.values()}.values()), notes, devices)


def _kind(entry: str) -> str:
    entry = entry.strip()
    return next((kind for kind in ("GPU", "MIG") if entry.startswith(f"{kind}-")), "integer")


def job_entries(environ: Mapping[str, str]) -> list[int | str] | None:
    if "SLURM_JOB_ID" not in environ:
        return None
    text = environ.get("SLURM_STEP_GPUS") or environ.get("SLURM_JOB_GPUS") or ""
    entries = parse_job_gpus(text)
    return None if entries is None else list(dict.fromkeys(entries))


def parse_job_gpus(text: str) -> list[int | str] | None:
    """Return the numbers and UUIDs of a list as Slurm writes it (``0,4-7``), None if it is none."""
    minors: list[int | str] = []
    for part in text.split(","):
        if _kind(part) != "integer":
            minors.append(part.strip())
            continue
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
