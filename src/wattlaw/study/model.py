"""The study file as frozen, validated models.

The description of a field says what is allowed; error messages quote it. A default is part of the
identity of every run (see ``identity``) and must never change.
"""

import math
import re
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self

from pydantic import Field, JsonValue, PlainValidator, model_validator
from pydantic_core import PydanticCustomError

from wattlaw.study.base import (
    MAX_COUNT,
    Count,
    Fraction,
    LocatedError,
    Model,
    Name,
    Positive,
    Precision,
    Word,
    field,
)
from wattlaw.study.launching import Launch
from wattlaw.text import join_names, quote

_COUNTS = "a list of whole numbers >= 1"
_LIMITS = "a list of numbers > 0, or null for no limit"
_FRACTION_RULE = re.compile(r"gpus/[1-9][0-9]{0,6}|[1-9][0-9]{0,6}/gpus")
_FRACTIONS = "a list of numbers > 0 and <= 1, or of rules such as gpus/256 or 1/gpus"
#: Names that an argument of a command may have in braces.
PLACEHOLDERS = (
    "gpus", "global_batch", "local_batch", "power_limit_w", "clock_limit_mhz", "precision",
    "dataset_fraction", "epochs", "warmup_epochs", "seed", "repeat",
)  # fmt: skip
_BRACES = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


def parse_fraction(given: Any) -> float | str:
    """Return a fraction of the data set, or a rule that computes it from the number of GPUs."""
    if isinstance(given, str) and _FRACTION_RULE.fullmatch(given):
        return given
    if isinstance(given, int | float) and not isinstance(given, bool) and 0 < given <= 1:
        return float(given)
    raise PydanticCustomError("fraction", _FRACTIONS)


def evaluate_fraction(rule: float | str, gpus: int) -> float:
    """Return the fraction of the data set that a rule gives for a number of GPUs."""
    if isinstance(rule, float):
        return rule
    numerator, denominator = (gpus if part == "gpus" else int(part) for part in rule.split("/"))
    return numerator / denominator


def substitute(word: str, values: dict[str, object]) -> str:
    """Return an argument of a command with the values of a run; ``{{`` and ``}}`` are braces.

    An unknown name or a single brace is a ``ValueError``.
    """

    def replacement(match: re.Match[str]) -> str:
        if match[0] in ("{{", "}}"):
            return match[0][0]
        if match[1] not in values:
            raise ValueError(
                f"given {word!r:.80}; allowed in braces: {', '.join(values)} ({{{{ is a brace)"
            )
        value = values[match[1]]
        return _number(value) if isinstance(value, float) else "" if value is None else str(value)

    return _BRACES.sub(replacement, word)


def _number(value: float) -> str:
    """Return the shortest exact text of a number: 200.0 as 200."""
    short = f"{value:.15g}"
    return short if float(short) == value else repr(value)


class WorkloadSpec(Model):
    """What is trained: a registered workload with options, or the user's own command."""

    name: Name = Field(
        description="the name of a workload (see 'wattlaw workloads') or of a command "
        "(letters, digits, '.', '_', '-')"
    )
    options: dict[str, JsonValue] = Field(
        default_factory=dict, description="a mapping of the workload's options"
    )
    command: tuple[Word, ...] | None = field(
        None,
        "a list of arguments such as [python, train.py, --batch, '{local_batch}']",
        min_length=1,
    )

    @model_validator(mode="before")
    @classmethod
    def _default_name(cls, given: Any) -> Any:
        """Name a command after its script where it has no name."""
        if not isinstance(given, dict) or given.get("command") is None:
            return given
        if not isinstance(given["command"], list | tuple):
            return {"name": "command"} | given  # so that the error is about the command
        # A strict tuple takes no list once this validator has returned Python values.
        words = tuple(given["command"])
        texts = [word for word in words if isinstance(word, str)]
        script = next((word for word in texts if word.endswith(".py")), (*texts, "")[0])
        name = re.sub(r"[^A-Za-z0-9._-]", "-", PurePosixPath(script).stem).lstrip("._-")[:100]
        return {"name": name or "command"} | given | {"command": words}

    @model_validator(mode="after")
    def _check_command(self) -> Self:
        if self.command is not None and self.options:
            raise ValueError("given command and options; allowed: options are for workloads only")
        for index, word in enumerate(self.command or ()):
            try:
                substitute(word, dict.fromkeys(PLACEHOLDERS))
            except ValueError as error:
                raise LocatedError(str(error), "command", index) from None
        return self


class Sweep(Model):
    """One grid of settings: the product of its lists."""

    gpus: tuple[Count, ...] = Field(min_length=1, description=_COUNTS)
    local_batch: tuple[Count, ...] | None = field(None, _COUNTS)
    global_batch: tuple[Count, ...] | None = field(None, _COUNTS)
    power_limit_w: tuple[Positive | None, ...] = field((None,), _LIMITS, min_length=1)
    clock_limit_mhz: tuple[Positive | None, ...] = field((None,), _LIMITS, min_length=1)
    precision: tuple[Precision, ...] = field(
        ("fp32",), "a list of: fp32, tf32, bf16, fp16", min_length=1
    )
    dataset_fraction: tuple[Annotated[Any, PlainValidator(parse_fraction)], ...] = field(
        (1.0,), _FRACTIONS, min_length=1
    )
    workloads: tuple[Name, ...] | None = field(
        None, "a list of workloads' names, or null for all", min_length=1
    )
    epochs: int | None = field(
        None, "a whole number >= 1 and <= 100,000, or null for measure's", ge=1, le=100_000
    )

    @model_validator(mode="after")
    def _check_batches(self) -> Self:
        if bool(self.local_batch) == bool(self.global_batch):
            given = "both" if self.local_batch else "neither"
            raise ValueError(f"given {given}; allowed: exactly one of local_batch, global_batch")
        largest = max(self.local_batch or (1,)) * max(self.gpus)
        if largest > MAX_COUNT:
            raise ValueError(
                f"gpus x local_batch is {largest:,}; allowed: a global batch up to {MAX_COUNT:,}"
            )
        # One pass over each list: nested loops would be slow for long lists.
        every_count = 1
        for workers in self.gpus:
            if (every_count := math.lcm(every_count, workers)) > MAX_COUNT:
                break  # larger than any batch
        for batch in self.global_batch or ():
            if batch % every_count:
                workers = next(workers for workers in self.gpus if batch % workers)
                raise ValueError(
                    f"global_batch {batch} with {workers} gpus; "
                    "allowed: a global batch that every GPU count divides"
                )
        extremes = (min(self.gpus), max(self.gpus))
        for index, rule in enumerate(self.dataset_fraction):
            for workers in extremes:
                if evaluate_fraction(rule, workers) > 1:
                    raise LocatedError(
                        f"given {rule}, with {workers} gpus more than 1; allowed: {_FRACTIONS}",
                        "dataset_fraction",
                        index,
                    )
        return self


class Setting(Model):
    """One point of a sweep, with both batch sizes: ``global_batch = gpus x local_batch``.

    The batch sizes of a command may be unknown.
    """

    gpus: Count
    global_batch: Count | None = None
    local_batch: Count | None = None
    power_limit_w: Positive | None = None
    clock_limit_mhz: Positive | None = None
    precision: Precision = "fp32"
    dataset_fraction: Fraction = 1.0

    @model_validator(mode="after")
    def _check_batches(self) -> Self:
        if self.local_batch is None and self.global_batch is None:
            return self
        if self.global_batch != self.gpus * (self.local_batch or 0):
            raise ValueError("global_batch must be gpus x local_batch")
        return self


class Measure(Model):
    """How long and how often a run is measured."""

    epochs: int = field(3, "a whole number >= 1 and <= 100,000", ge=1, le=100_000)
    warmup_epochs: int = field(
        1, "a whole number >= 0 and < epochs (warm-up is part of epochs)", ge=0
    )
    sample_hz: float = field(10.0, "samples per second, > 0 and <= 1000", gt=0, le=1000)
    evaluate: bool = field(True, "true or false")
    assume_cpu_w: float | None = field(
        None, "watts per busy core (> 0) for an estimate, or null for none", gt=0
    )

    @model_validator(mode="after")
    def _check_warmup(self) -> Self:
        if self.warmup_epochs >= self.epochs:
            raise ValueError(
                f"warmup_epochs {self.warmup_epochs} of epochs {self.epochs}; "
                "allowed: fewer warm-up epochs than epochs"
            )
        return self


class Train(Model):
    """Settings of the training loop. None of them changes the global batch."""

    channels_last: bool = field(False, "true or false")
    compile: bool = field(False, "true or false (torch.compile)")
    fused_optimizer: bool = field(False, "true or false")
    gradient_accumulation: int = field(
        1, "gradient-accumulation steps of a local batch, >= 1 and <= 100,000", ge=1, le=100_000
    )
    bucket_mb: float = field(25.0, "MiB of a gradient bucket, > 0 and <= 100,000", gt=0, le=100_000)
    loader_workers: int | None = field(
        None, "loader processes of each worker, 0 to 256, or null for a default", ge=0, le=256
    )
    prefetch: int = field(
        2, "batches that each loader process prepares in advance, >= 1 and <= 1000", ge=1, le=1000
    )
    checkpoint_every: int | None = field(None, "epochs (>= 1), or null for no checkpoints", ge=1)
    save_model: bool = field(False, "true to keep the trained model in the run's folder, or false")
    seed: int = field(
        0, "a whole number >= 0 and <= 2^31; repeat r trains from seed + r", ge=0, le=2**31
    )


class Study(Model):
    """One study file."""

    name: Name = Field(
        description="a name of letters, digits, '.', '_' and '-' (at most 100, no '/' or space)"
    )
    workloads: tuple[WorkloadSpec, ...] = Field(
        min_length=1, description="a list of at least one {name: ..., options: {...}}"
    )
    sweeps: tuple[Sweep, ...] = Field(
        min_length=1,
        description="a list of at least one grid with gpus and one of local_batch, global_batch",
    )
    repeats: int = field(1, "a whole number >= 1", ge=1, le=10_000)
    order: Literal["random", "as_written"] = field("random", "random or as_written")
    order_seed: int = field(0, "a whole number >= 0", ge=0)
    measure: Measure = field(Measure(), "a mapping of measure settings")
    train: Train = field(Train(), "a mapping of settings of the training loop")
    launch: Launch = field(Launch(), "a mapping of launch settings")

    @model_validator(mode="after")
    def _check_sweeps(self) -> Self:
        names = {workload.name for workload in self.workloads}
        covered = set[str]()
        for index, sweep in enumerate(self.sweeps):
            for position, name in enumerate(sweep.workloads or ()):
                if name not in names:
                    raise LocatedError(
                        f"given {quote(name)}; allowed: {join_names(sorted(names))}",
                        *("sweeps", index, "workloads", position),
                    )
            covered.update(sweep.workloads or ())
            if sweep.epochs is not None and sweep.epochs <= self.measure.warmup_epochs:
                raise LocatedError(
                    f"given {sweep.epochs} with measure.warmup_epochs "
                    f"{self.measure.warmup_epochs}; allowed: more than measure.warmup_epochs",
                    *("sweeps", index, "epochs"),
                )
        are_all_covered = any(sweep.workloads is None for sweep in self.sweeps)
        for index, workload in enumerate(self.workloads):
            if not are_all_covered and workload.name not in covered:
                raise LocatedError(
                    f"no sweep includes {workload.name}; allowed: one or more for each workload",
                    *("workloads", index),
                )
        return self


class RunSpec(Model):
    """The specification of one run: everything its identity depends on, and nothing else."""

    workload: WorkloadSpec
    setting: Setting
    repeat: int = Field(ge=0)
    measure: Measure
    train: Train = Train()
    launch_kind: str
    hardware: str | None = None
    nodes: int = Field(default=1, ge=1)
