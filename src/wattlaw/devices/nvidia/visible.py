"""Which boards are ours: CUDA_VISIBLE_DEVICES and Slurm's variables, read as CUDA reads them.

CUDA's rules: CUDA C++ Programming Guide, appendix on environment variables. Integers are CUDA
ordinals; NVML counts in the order of PCI bus ids. The two agree where ``CUDA_DEVICE_ORDER`` is
``PCI_BUS_ID``, and where all boards are of one model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wattlaw.errors import NotAvailable

_VISIBLE = "CUDA_VISIBLE_DEVICES"
#: What Slurm writes into CUDA_VISIBLE_DEVICES where a job holds no GPU.
_NO_GPUS = ("", "NoDevFiles")
#: No machine has more boards than this many digits count.
_MOST_DIGITS = 4


@dataclass(frozen=True)
class GpuListing:
    """A board as the machine lists it, in the order of PCI bus ids."""

    uuid: str
    name: str
    minor: int | None = None
    mig_uuids: tuple[str, ...] = ()


@dataclass(frozen=True)
class GpuSelection:
    """The boards that are ours, each once, and what is worth telling about the choice."""

    boards: tuple[GpuListing, ...]
    notes: tuple[str, ...] = ()


def select_gpus(boards: Sequence[GpuListing], environ: Mapping[str, str]) -> GpuSelection:
    """Return the boards that a process with this environment may use.

    Raises
    ------
    NotAvailable
        Ordinals on a machine of several models say nothing about which board is meant.
    """
    asked = environ.get(_VISIBLE)
    job = _job_minors(environ)
    if asked is None:
        return _of_job(boards, environ, job)
    found = _named(boards, asked, environ)
    if job is None or len(boards) <= len(job):
        return found  # the job's cgroup hides what is not its own
    mine = tuple(board for board in found.boards if board.minor in job)
    others = len(found.boards) - len(mine)
    told = (
        (f"{_VISIBLE} names {others} GPU(s) that this Slurm job does not hold",) if others else ()
    )
    return GpuSelection(mine, (*found.notes, *told))


def _of_job(
    boards: Sequence[GpuListing], environ: Mapping[str, str], job: frozenset[int] | None
) -> GpuSelection:
    """Return all boards, or inside a Slurm job only its own."""
    if "SLURM_JOB_ID" not in environ:
        return GpuSelection(tuple(boards))
    if job is None:
        why = f"this Slurm job holds no GPU; set {_VISIBLE} to name GPUs all the same"
        return GpuSelection((), (why,))
    mine = [board for board in boards if board.minor in job]
    return GpuSelection(tuple(boards if len(boards) <= len(job) else mine))


def _job_minors(environ: Mapping[str, str]) -> frozenset[int] | None:
    """Return the minor numbers of a Slurm job's GPUs on this node, None where it tells none."""
    if "SLURM_JOB_ID" not in environ:
        return None
    told = environ.get("SLURM_STEP_GPUS") or environ.get("SLURM_JOB_GPUS")
    if not told:
        return None
    minors: set[int] = set()
    for part in told.split(","):
        words = part.strip().split("-", 1)  # such as 4, or 4-7
        first, last = _number(words[0]), _number(words[-1])
        if first is None or last is None:
            return None
        minors |= set(range(first, last + 1))
    return frozenset(minors)


def _number(word: str) -> int | None:
    """Return a number as CUDA and Slurm write one, None for anything else."""
    is_number = word.isascii() and word.isdigit() and len(word) <= _MOST_DIGITS
    return int(word) if is_number else None


def _named(boards: Sequence[GpuListing], asked: str, environ: Mapping[str, str]) -> GpuSelection:
    if asked.strip() in _NO_GPUS:
        return GpuSelection((), (f"{_VISIBLE} is {asked!r}: no GPU is visible",))
    found: dict[str, GpuListing] = {}
    for word in (part.strip() for part in asked.split(",")):
        board = _board(boards, word, environ)
        if board is None:  # as for CUDA, the list ends here
            told = f"{_VISIBLE}: {word!a} names no GPU here; it and what follows is not visible"
            return GpuSelection(tuple(found.values()), (told,))
        found[board.uuid] = board
    return GpuSelection(tuple(found.values()))


def _board(
    boards: Sequence[GpuListing], word: str, environ: Mapping[str, str]
) -> GpuListing | None:
    number = _number(word)
    if number is not None:
        ordered = environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
        if not ordered and len({board.name for board in boards}) > 1:
            raise NotAvailable(
                f"{_VISIBLE} has the ordinal {word} on a machine with several GPU models; "
                "set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name GPUs by UUID"
            )
        return boards[number] if number < len(boards) else None
    if word.startswith("MIG-GPU-"):  # MIG-<board's UUID>/<GPU instance>/<compute instance>
        return _single([b for b in boards if b.uuid == word.removeprefix("MIG-").split("/")[0]])
    if word.startswith("MIG-"):
        return _single([b for b in boards if any(uuid.startswith(word) for uuid in b.mig_uuids)])
    if word.startswith("GPU-"):
        return _single([board for board in boards if board.uuid.startswith(word)])
    return None


def _single(found: list[GpuListing]) -> GpuListing | None:
    return found[0] if len(found) == 1 else None
