"""The section ``launch`` of a study file: where and how runs are started."""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, field_validator, model_validator
from pydantic_core import PydanticCustomError

from wattlaw.common.text import quote
from wattlaw.study.base_model import LocatedError, Model, Name, Word, field

#: Options of sbatch that a study may set. The others change what a run measures, read or write
#: files, change the script, its user or its environment, or print. See
#: https://slurm.schedmd.com/sbatch.html
WITH_VALUE = frozenset(
    {
        *("account", "acctg-freq", "begin", "comment", "constraint", "core-spec"),
        *("cores-per-socket", "cpu-freq", "dependency", "distribution", "exclude", "hint"),
        *("kill-on-invalid-dep", "licenses", "mail-type", "mail-user", "mcs-label", "mem"),
        *("mem-bind", "mem-per-cpu", "mem-per-gpu", "mincpus", "network", "nodelist", "partition"),
        *("prefer", "qos", "reservation", "sockets-per-node", "switches", "thread-spec"),
        *("threads-per-core", "tmp", "wckey"),
    }
)
FLAGS = frozenset({"contiguous", "overcommit", "oversubscribe", "spread-job", "use-min-nodes"})
WITH_OR_WITHOUT = frozenset({"exclusive", "nice"})
ALLOWED = sorted(WITH_VALUE | FLAGS | WITH_OR_WITHOUT)
#: Options whose value is a list of nodes; sbatch reads a file where it contains a slash.
_NODE_LISTS = ("nodelist", "exclude")
_MAX_VALUE_LENGTH = 1000
#: A generic resource, and its type, which is no count as Slurm reads it (sbatch(1), --gres).
_GRES = re.compile(r"[A-Z0-9_.-]+(:(?![0-9]+[KMGTP]?\Z)[A-Z0-9_.-]+)?", re.ASCII | re.IGNORECASE)


def _fault(option: str, value: str | int | bool) -> str | None:
    if isinstance(value, bool):
        return "text or a whole number" if value and option in WITH_VALUE else None
    if option in FLAGS:
        return "true or false"
    text = str(value)
    if not 0 < len(text) <= _MAX_VALUE_LENGTH or not text.isprintable():
        return f"1 to {_MAX_VALUE_LENGTH:,} printable characters"
    if option != "comment" and any(char.isdigit() and not char.isascii() for char in text):
        return "the digits 0 to 9"
    if option in _NODE_LISTS and "/" in text:
        return "names of nodes, not a file"
    return None


def _require_line(text: str) -> str:
    if not text.replace("\t", " ").isprintable():
        raise ValueError(f"given {quote(text)}; allowed: one line of printable characters and tabs")
    return text


#: A line of a script.
Line = Annotated[Word, AfterValidator(_require_line)]


FileName = Annotated[str, StringConstraints(min_length=1, max_length=1000)]
TimeLimit = Annotated[
    str, StringConstraints(pattern=r"^([0-9]{1,5}-)?[0-9]{1,5}(:[0-9]{1,2}){0,2}$")
]
Suffix = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9.-]{0,100}$")]


class Simulation(Model):
    hardware: FileName | None = field(None, "the name of a cluster, or a file of one, or null")
    fail_share: float = field(0.0, "the share of attempts that fail, 0 to 1", ge=0, le=1)
    seed: int = field(0, "a whole number >= 0 and <= 2^31", ge=0, le=2**31)
    critical_batch: float | None = field(None, "samples (> 0), or null for no quality", gt=0)
    epochs_to_target: float | None = field(
        None, "epochs (> 0) that small batches need, or null", gt=0
    )

    @model_validator(mode="after")
    def _check_quality(self) -> Self:
        if (self.critical_batch is None) != (self.epochs_to_target is None):
            raise ValueError(
                "given one of critical_batch and epochs_to_target; allowed: both or neither"
            )
        return self


#: Slurm may send its signal this much earlier than requested (sbatch(1), --signal).
SLURM_EARLY_SIGNAL_S = 60


def parse_time_limit(time: str) -> int:
    """Return the seconds of a time limit as Slurm reads it (sbatch(1), --time).

    With days: ``days-hours[:minutes[:seconds]]``; without: ``minutes[:seconds]`` or
    ``hours:minutes:seconds``.
    """
    days, dash, rest = time.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if dash:
        hours, minutes, seconds = [*parts, 0, 0][:3]
    elif len(parts) == 3:
        hours, minutes, seconds = parts
    else:
        hours, (minutes, seconds) = 0, [*parts, 0][:2]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def time_limit(seconds: int) -> str:
    """Return ``hours:minutes:seconds``, from a day on ``days-hours:minutes:seconds``.

    >>> time_limit(9900), time_limit(93600)
    ('02:45:00', '1-02:00:00')
    """
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{f'{days}-' if days else ''}{hours:02}:{minutes:02}:{rest:02}"


class Slurm(Model):
    options: dict[str, str | int | bool] = Field(
        default_factory=dict,
        description="a mapping of sbatch's long options without dashes to texts, whole numbers, "
        "true or false, such as {partition: gpu, account: abc, exclusive: true}",
    )
    time: TimeLimit | None = field(
        None, "a time limit in quotes, such as '02:00:00' or '1-12:00:00', or the partition's: null"
    )
    gres: str | None = field(
        "gpu",
        "the generic resource of each worker, without a count, such as gpu or gpu:a100, "
        "or null for nodes without GPUs",
    )
    cpus_per_worker: int | None = field(
        None, "processor cores (>= 1) of each worker, or null for the site's default", ge=1, le=4096
    )
    setup: tuple[Line, ...] = field(
        (), "a list of bash lines that run first, such as ['module load CUDA']", max_length=1000
    )
    python: Line | None = field(
        None, "the Python with wattlaw on the nodes, or null for the one that submits", min_length=1
    )
    host_suffix: Suffix = field(
        "", "letters, digits, '.', '-' that select a network behind a node's name, such as -ib0"
    )
    limits: Literal["own", "prolog"] = field(
        "own", "own, to set limits from the job, or prolog, in the site's prolog and epilog"
    )
    max_queued: int = field(20, "the most jobs in the queue at once, 1 to 10,000", ge=1, le=10_000)
    poll_s: float = field(30.0, "seconds between queries of Slurm, 1 to 3600", ge=1, le=3600)
    warn_s: int = field(
        120, "seconds (1 to 65,535) before the time limit: a checkpoint is saved", ge=1, le=65_535
    )
    settle_s: float = field(
        60.0, "seconds (0 to 3600) until a file of one node is visible on another", ge=0, le=3600
    )

    @field_validator("options")
    @classmethod
    def _check_options(cls, given: dict[str, Any]) -> dict[str, Any]:
        for name, value in given.items():
            if name not in ALLOWED:
                hint = f" (set launch.slurm.{name})" if name in ("time", "gres") else ""
                raise LocatedError(f"cannot be set here{hint}; allowed: {', '.join(ALLOWED)}", name)
            if (allowed := _fault(name, value)) is not None:
                raise LocatedError(f"given {quote(value)}; allowed: {allowed}", name)
        return given

    @field_validator("gres")
    @classmethod
    def _check_gres(cls, given: str | None) -> str | None:
        if given is not None and not _GRES.fullmatch(given):
            raise PydanticCustomError("gres", "given with a count, or no generic resource")
        return given

    @model_validator(mode="after")
    def _check_time(self) -> Self:
        least_s = self.warn_s + SLURM_EARLY_SIGNAL_S
        if self.time is not None and parse_time_limit(self.time) < least_s:
            raise LocatedError(
                f"given {self.time}, {parse_time_limit(self.time)} s; allowed: at least "
                f"{least_s} s, since Slurm may signal {SLURM_EARLY_SIGNAL_S} s before warn_s",
                "time",
            )
        return self


class Launch(Model):
    """Where runs are started. Only ``kind``, ``hardware`` and node count affect the run id."""

    kind: Name = field("local", "the name of a launcher, such as local")
    hardware: str | None = field(
        None, "a label of the hardware, or null to detect it", max_length=200
    )
    gpus_per_node: int | None = field(None, "a whole number >= 1, or null to count them", ge=1)
    threads_per_worker: int | None = field(
        None, "a whole number >= 1, or null for an equal share of cores", ge=1
    )
    prior_clocks: Literal["default"] | None = field(
        None, "default, to state that no clock is locked before a run, or null"
    )
    max_parallel: int = field(1, "a whole number >= 1", ge=1)
    timeout_s: float | None = field(None, "seconds (> 0), or null for no limit", gt=0)
    slurm: Slurm = field(Slurm(), "a mapping of settings of the launcher slurm")
    simulation: Simulation = field(Simulation(), "a mapping of settings of the launcher simulated")
    table: FileName | None = field(
        None, "a .csv or .jsonl file of measurements for the launcher replay, or null"
    )
