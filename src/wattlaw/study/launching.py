"""The study file's ``launch``: where and how runs happen."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, field_validator, model_validator

from wattlaw.study.base import Model, Name, Word
from wattlaw.study.rules import LocatedError
from wattlaw.text import quote

#: Options of sbatch that a study may give. Others say what a run is, on which its results depend;
#: read or write files of their own; change the script, its user or its environment; or print.
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
#: Their values are lists of nodes, or with a slash the name of a file that sbatch reads.
_LISTS_OF_NODES = ("nodelist", "exclude")
_LONGEST_VALUE = 1000


def _fault(option: str, value: str | int | bool) -> str | None:
    """Return what an option of sbatch may be instead of a value, None where it may be that."""
    if isinstance(value, bool):
        return "text or a whole number" if value and option in WITH_VALUE else None
    if option in FLAGS:
        return "true or false"
    text = str(value)
    if not 0 < len(text) <= _LONGEST_VALUE or not text.isprintable():
        return f"1 to {_LONGEST_VALUE:,} printable characters"
    if option != "comment" and any(char.isdigit() and not char.isascii() for char in text):
        return "the digits 0 to 9"
    if option in _LISTS_OF_NODES and "/" in text:
        return "names of nodes, not a file"
    return None


class Simulation(Model):
    """What the launcher ``simulated`` simulates; others do not look at it."""

    hardware: str | None = Field(
        default=None,
        min_length=1,
        max_length=1000,
        description="the name of a cluster, or a file that describes one, or null",
    )
    calibration: str | None = Field(
        default=None,
        min_length=1,
        max_length=1000,
        description="a file of 'wattlaw calibrate', or null for none",
    )
    fail_share: float = Field(
        default=0.0, ge=0, le=1, description="the share of attempts that fail, 0 to 1"
    )
    seed: int = Field(default=0, ge=0, le=2**31, description="a whole number >= 0 and <= 2^31")
    critical_batch: float | None = Field(
        default=None, gt=0, description="samples (> 0), or null for no quality"
    )
    epochs_to_target: float | None = Field(
        default=None, gt=0, description="epochs (> 0) that small batches need, or null"
    )

    @model_validator(mode="after")
    def _quality_is_whole(self) -> Self:
        if (self.critical_batch is None) != (self.epochs_to_target is None):
            raise ValueError(
                "given one of critical_batch and epochs_to_target; allowed: both or neither"
            )
        return self


#: How much earlier than asked for Slurm may send its warning (sbatch(1), --signal).
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


class Slurm(Model):
    """How the launcher ``slurm`` asks for jobs; others do not look at it."""

    options: dict[str, str | int | bool] = Field(
        default_factory=dict,
        description="a mapping of sbatch's long options without dashes to text, whole numbers, "
        "true or false, such as {partition: gpu, account: abc, exclusive: true}",
    )
    time: (
        Annotated[str, StringConstraints(pattern=r"^([0-9]{1,5}-)?[0-9]{1,5}(:[0-9]{1,2}){0,2}$")]
        | None
    ) = Field(
        default=None,
        description="a job's time limit in quotes, such as '02:00:00' or '1-12:00:00', "
        "or null for the partition's",
    )
    gres: (
        Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_]+(:[A-Za-z0-9_.-]+)?$")] | None
    ) = Field(
        default="gpu",
        description="what each worker takes of its node, such as gpu or gpu:a100, "
        "or null for nodes without GPUs",
    )
    cpus_per_worker: int | None = Field(
        default=None,
        ge=1,
        le=4096,
        description="processor cores (>= 1) to ask for, or null to leave that to the site",
    )
    setup: tuple[Word, ...] = Field(
        default=(),
        max_length=1000,
        description="a list of lines of bash, run on the job's first node before anything else, "
        "such as ['module load CUDA']",
    )
    python: Word | None = Field(
        default=None,
        min_length=1,
        description="the Python in which wattlaw is installed on the nodes, "
        "or null for the one that submits",
    )
    host_suffix: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9.-]{0,100}$")] = Field(
        default="",
        description="what the first node's name is given to be reached through another network "
        "(letters, digits, '.', '-'), such as i or -ib0",
    )
    limits: Literal["own", "prolog"] = Field(
        default="own",
        description="own, to set power and clock limits from the job, or prolog, where the site "
        "has installed wattlaw's Slurm prolog and epilog",
    )
    max_queued: int = Field(
        default=20, ge=1, le=10_000, description="jobs in the queue at once, 1 to 10,000"
    )
    poll_s: float = Field(
        default=30.0, ge=1, le=3600, description="seconds between questions to Slurm, 1 to 3600"
    )
    warn_s: int = Field(
        default=120,
        ge=1,
        le=65_535,
        description="seconds (1 to 65,535) before the time limit at which a checkpoint is made",
    )
    settle_s: float = Field(
        default=60.0,
        ge=0,
        le=3600,
        description="seconds (0 to 3600) after which a file written on one node is seen on another",
    )

    @field_validator("options")
    @classmethod
    def _options_are_allowed(cls, given: dict[str, Any]) -> dict[str, Any]:
        for name, value in given.items():
            if name not in ALLOWED:
                own = f" (set launch.slurm.{name})" if name in ("time", "gres") else ""
                raise LocatedError(f"cannot be set here{own}; allowed: {', '.join(ALLOWED)}", name)
            if (allowed := _fault(name, value)) is not None:
                raise LocatedError(f"given {quote(value)}; allowed: {allowed}", name)
        return given

    @field_validator("python")
    @classmethod
    def _python_is_printable(cls, given: str | None) -> str | None:
        if given is not None and not given.isprintable():
            raise LocatedError(f"given {quote(given)}; allowed: printable characters, or null")
        return given

    @model_validator(mode="after")
    def _there_is_time_to_warn(self) -> Self:
        least_s = self.warn_s + SLURM_EARLY_SIGNAL_S
        if self.time is not None and parse_time_limit(self.time) < least_s:
            raise LocatedError(
                f"given {self.time}, {parse_time_limit(self.time)} s; allowed: at least warn_s and "
                f"{SLURM_EARLY_SIGNAL_S} s, {least_s} s, since Slurm may warn so much earlier",
                "time",
            )
        return self

    @field_validator("setup")
    @classmethod
    def _lines_are_lines(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        for place, line in enumerate(given):
            if "\n" in line or "\r" in line:
                raise LocatedError("given several lines; allowed: one line in each item", place)
            if not line.replace("\t", " ").isprintable():
                raise LocatedError(
                    f"given {quote(line)}; allowed: printable characters and tabs", place
                )
        return given


class Launch(Model):
    """Where runs happen. Only ``kind``, ``hardware`` and the node count are part of identity."""

    kind: Name = Field(default="local", description="the name of a launcher, such as local")
    hardware: str | None = Field(
        default=None, max_length=200, description="a label for the hardware, or null to detect it"
    )
    gpus_per_node: int | None = Field(
        default=None, ge=1, description="a whole number >= 1, or null to count them"
    )
    threads_per_worker: int | None = Field(
        default=None, ge=1, description="a whole number >= 1, or null for an equal share of cores"
    )
    prior_clocks: Literal["default"] | None = Field(
        default=None,
        description="default, to state that no clock is locked before a run, or null",
    )
    max_parallel: int = Field(default=1, ge=1, description="a whole number >= 1")
    timeout_s: float | None = Field(
        default=None, gt=0, description="seconds (> 0), or null for no limit"
    )
    slurm: Slurm = Field(default=Slurm(), description="a mapping of settings of the launcher slurm")
    simulation: Simulation = Field(
        default=Simulation(), description="a mapping of settings of the launcher simulated"
    )
