"""The study file as frozen, validated models.

Every field's description says what is allowed; the reader puts it into the error message.
A default is part of every run's identity (see ``identity``) and must never be changed.
"""

import math
import re
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self

from pydantic import Field, JsonValue, PlainValidator, model_validator

from wattlaw.study.base import MAX_COUNT, Count, Fraction, Model, Name, Positive, Precision, Word
from wattlaw.study.launching import Launch
from wattlaw.study.rules import (
    FRACTIONS,
    PLACEHOLDERS,
    LocatedError,
    evaluate_fraction,
    parse_fraction,
    substitute,
)
from wattlaw.text import join_names, quote

_COUNTS = "a list of whole numbers >= 1"
_LIMITS = "a list of numbers > 0, or null for no limit"


class WorkloadSpec(Model):
    """What is trained: a registered workload and its options, or a command of the user's own."""

    name: Name = Field(
        description="the name of a workload (see 'wattlaw workloads'), or one for a command "
        "(letters, digits, '.', '_', '-')"
    )
    options: dict[str, JsonValue] = Field(
        default_factory=dict, description="a mapping of the workload's options"
    )
    command: tuple[Word, ...] | None = Field(
        default=None,
        min_length=1,
        description="a list of words such as [python, train.py, --batch, '{local_batch}']",
    )

    @model_validator(mode="before")
    @classmethod
    def _named_after_its_script(cls, given: Any) -> Any:
        """Give a command that has no name that of its script."""
        if not isinstance(given, dict) or given.get("command") is None:
            return given
        if not isinstance(given["command"], list | tuple):
            return {"name": "command"} | given  # so that it is the command that is refused
        # What has passed through here is no JSON any more: a strict tuple takes no list.
        words = tuple(given["command"])
        texts = [word for word in words if isinstance(word, str)]
        script = next((word for word in texts if word.endswith(".py")), (*texts, "")[0])
        name = re.sub(r"[^A-Za-z0-9._-]", "-", PurePosixPath(script).stem).lstrip("._-")[:100]
        return {"name": name or "command"} | given | {"command": words}

    @model_validator(mode="after")
    def _command_can_be_filled(self) -> Self:
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
    local_batch: tuple[Count, ...] | None = Field(default=None, description=_COUNTS)
    global_batch: tuple[Count, ...] | None = Field(default=None, description=_COUNTS)
    power_limit_w: tuple[Positive | None, ...] = Field(
        default=(None,), min_length=1, description=_LIMITS
    )
    clock_limit_mhz: tuple[Positive | None, ...] = Field(
        default=(None,), min_length=1, description=_LIMITS
    )
    precision: tuple[Precision, ...] = Field(
        default=("fp32",), min_length=1, description="a list of: fp32, tf32, bf16, fp16"
    )
    dataset_fraction: tuple[Annotated[Any, PlainValidator(parse_fraction)], ...] = Field(
        default=(1.0,), min_length=1, description=FRACTIONS
    )
    workloads: tuple[Name, ...] | None = Field(
        default=None, min_length=1, description="a list of workloads' names, or null for all"
    )
    epochs: int | None = Field(
        default=None,
        ge=1,
        le=100_000,
        description="a whole number >= 1 and <= 100,000, or null for measure's",
    )

    @model_validator(mode="after")
    def _one_kind_of_batch(self) -> Self:
        if bool(self.local_batch) == bool(self.global_batch):
            given = "both" if self.local_batch else "neither"
            raise ValueError(f"given {given}; allowed: exactly one of local_batch, global_batch")
        largest = max(self.local_batch or (1,)) * max(self.gpus)
        if largest > MAX_COUNT:
            raise ValueError(
                f"gpus x local_batch is {largest:,}; allowed: a global batch up to {MAX_COUNT:,}"
            )
        # Every list is gone through once, never one for each value of another.
        every_count = 1
        for workers in self.gpus:
            if (every_count := math.lcm(every_count, workers)) > MAX_COUNT:
                break  # no batch is so large
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
                        f"given {rule}, with {workers} gpus more than 1; allowed: {FRACTIONS}",
                        "dataset_fraction",
                        index,
                    )
        return self


class Setting(Model):
    """One point of a sweep. Both batch sizes are kept; ``global_batch = gpus x local_batch``.

    A command that was measured as it is has none that we know of.
    """

    gpus: Count
    global_batch: Count | None = None
    local_batch: Count | None = None
    power_limit_w: Positive | None = None
    clock_limit_mhz: Positive | None = None
    precision: Precision = "fp32"
    dataset_fraction: Fraction = 1.0

    @model_validator(mode="after")
    def _batches_agree(self) -> Self:
        if self.local_batch is None and self.global_batch is None:
            return self
        if self.global_batch != self.gpus * (self.local_batch or 0):
            raise ValueError("global_batch must be gpus x local_batch")
        return self


class Measure(Model):
    """How long and how finely a run is measured."""

    epochs: int = Field(
        default=3, ge=1, le=100_000, description="a whole number >= 1 and <= 100,000"
    )
    warmup_epochs: int = Field(
        default=1, ge=0, description="a whole number >= 0 and < epochs (warm-up is part of epochs)"
    )
    sample_hz: float = Field(
        default=10.0, gt=0, le=1000, description="samples per second, > 0 and <= 1000"
    )
    evaluate: bool = Field(default=True, description="true or false")
    assume_cpu_w: float | None = Field(
        default=None,
        gt=0,
        description="watts per busy core (> 0) for an estimate, or null for none",
    )

    @model_validator(mode="after")
    def _something_is_measured(self) -> Self:
        if self.warmup_epochs >= self.epochs:
            raise ValueError(
                f"warmup_epochs {self.warmup_epochs} of epochs {self.epochs}; "
                "allowed: fewer warm-up epochs than epochs"
            )
        return self


class Train(Model):
    """How the loop trains. The global batch is what the setting says, whatever is chosen here."""

    channels_last: bool = Field(default=False, description="true or false")
    compile: bool = Field(default=False, description="true or false (torch.compile)")
    fused_optimizer: bool = Field(default=False, description="true or false")
    gradient_accumulation: int = Field(
        default=1,
        ge=1,
        le=100_000,
        description="the pieces in which a local batch is computed, >= 1 and <= 100,000",
    )
    bucket_mb: float = Field(
        default=25.0,
        gt=0,
        le=100_000,
        description="MiB of gradients sent at once, > 0 and <= 100,000",
    )
    loader_workers: int | None = Field(
        default=None,
        ge=0,
        le=256,
        description="loader processes of each worker, 0 to 256, or null to go by data and cores",
    )
    prefetch: int = Field(
        default=2,
        ge=1,
        le=1000,
        description="batches each loader process has ready, >= 1 and <= 1000",
    )
    checkpoint_every: int | None = Field(
        default=None, ge=1, description="epochs (>= 1), or null for no checkpoints"
    )
    save_model: bool = Field(
        default=False, description="true to keep the trained model in the run's folder, or false"
    )
    seed: int = Field(
        default=0,
        ge=0,
        le=2**31,
        description="a whole number >= 0 and <= 2^31; repeat r trains from seed + r",
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
    repeats: int = Field(default=1, ge=1, le=10_000, description="a whole number >= 1")
    order: Literal["random", "as_written"] = Field(
        default="random", description="random or as_written"
    )
    order_seed: int = Field(default=0, ge=0, description="a whole number >= 0")
    measure: Measure = Field(default=Measure(), description="a mapping of measure settings")
    train: Train = Field(default=Train(), description="a mapping of settings of the training loop")
    launch: Launch = Field(default=Launch(), description="a mapping of launch settings")

    @model_validator(mode="after")
    def _sweeps_fit(self) -> Self:
        names = {workload.name for workload in self.workloads}
        covered = set[str]()
        for index, sweep in enumerate(self.sweeps):
            for place, name in enumerate(sweep.workloads or ()):
                if name not in names:
                    raise LocatedError(
                        f"given {quote(name)}; allowed: {join_names(sorted(names))}",
                        *("sweeps", index, "workloads", place),
                    )
            covered.update(sweep.workloads or ())
            if sweep.epochs is not None and sweep.epochs <= self.measure.warmup_epochs:
                raise LocatedError(
                    f"given {sweep.epochs}, of which measure.warmup_epochs are "
                    f"{self.measure.warmup_epochs}; allowed: more than those",
                    *("sweeps", index, "epochs"),
                )
        are_all_covered = any(sweep.workloads is None for sweep in self.sweeps)
        for index, workload in enumerate(self.workloads):
            if not are_all_covered and workload.name not in covered:
                raise LocatedError(
                    f"no sweep is for {workload.name}; allowed: at least one for each workload",
                    *("workloads", index),
                )
        return self


class RunSpec(Model):
    """What one run was asked to be: everything its identity depends on, and nothing else."""

    workload: WorkloadSpec
    setting: Setting
    repeat: int = Field(ge=0)
    measure: Measure
    train: Train = Train()
    launch_kind: str
    hardware: str | None = None
    nodes: int = Field(default=1, ge=1)
