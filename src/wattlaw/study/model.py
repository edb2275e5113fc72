"""The study file as frozen, validated models.

Every field's description says what is allowed; the reader puts it into the error message.
A default is part of every run's identity (see ``identity``) and must never be changed.
"""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StringConstraints, model_validator

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
MAX_COUNT = 10_000_000
Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Positive = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Precision = Literal["fp32"]

_COUNTS = "a list of whole numbers >= 1"
_LIMITS = "a list of numbers > 0, or null for no limit"


class Model(BaseModel):
    """Frozen, strict (no text taken for a number), and closed to unknown keys."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True
    )


class WorkloadSpec(Model):
    """What is trained: a registered workload and its options."""

    name: Name = Field(description="the name of a workload (see 'wattlaw workloads')")
    options: dict[str, JsonValue] = Field(
        default_factory=dict, description="a mapping of the workload's options"
    )


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
        default=("fp32",), min_length=1, description="a list of: fp32"
    )
    dataset_fraction: tuple[Fraction, ...] = Field(
        default=(1.0,), min_length=1, description="a list of numbers > 0 and <= 1"
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
        for batch in self.global_batch or ():
            for workers in self.gpus:
                if batch % workers:
                    raise ValueError(
                        f"global_batch {batch} with {workers} gpus; "
                        "allowed: a global batch that every GPU count divides"
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

    epochs: int = Field(default=3, ge=1, le=100_000, description="a whole number >= 1")
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
    launch: Launch = Field(default=Launch(), description="a mapping of launch settings")


class RunSpec(Model):
    """What one run was asked to be: everything its identity depends on, and nothing else."""

    workload: WorkloadSpec
    setting: Setting
    repeat: int = Field(ge=0)
    measure: Measure
    launch_kind: str
    hardware: str | None = None
    nodes: int = Field(default=1, ge=1)
