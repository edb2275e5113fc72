"""The study file as frozen, validated models.

The description of a field says what is allowed; error messages quote it. A default is part of the
identity of every run (see ``canonical``) and must never change.
"""

import hashlib
import json
import math
import re
from functools import cache
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, JsonValue, PlainSerializer, PlainValidator, model_validator

from wattlaw.common.errors import BadInput
from wattlaw.common.text import join_names, quote
from wattlaw.study.base_model import MAX_COUNT, LocatedError, Model, Name, Word, field
from wattlaw.study.command import PLACEHOLDERS, LogProgress, substitute
from wattlaw.study.launching import Launch
from wattlaw.study.network import Network
from wattlaw.study.question import Decide
from wattlaw.study.setting import Setting
from wattlaw.study.sweep import Sweep

ID_DIGITS = 16
_REQUIRED = math.nan  # equal to nothing


class WorkloadSpec(Model):
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
    dataset_samples: int | None = field(
        None,
        "the number of training samples of the full data set (1 to 10^12), or null if unknown",
        ge=1,
        le=10**12,
    )
    instrument: Literal["auto", "none"] = field("auto", "auto or none")
    launch_with: Literal["auto", "none", "torchrun", "mpirun", "srun"] = field(
        "auto", "auto, none, torchrun, mpirun or srun"
    )
    progress: LogProgress | None = field(None, "a mapping {pattern: REGULAR EXPRESSION}, or null")
    model: Network | None = field(
        None, "the sizes of a transformer, the path of a config.json, or null"
    )

    @model_validator(mode="before")
    @classmethod
    def _default_name(cls, given: Any) -> Any:
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
        for name in ("instrument", "launch_with", "progress"):
            default = type(self).model_fields[name].default
            if self.command is None and getattr(self, name) != default:
                raise LocatedError("given without command; allowed: for commands only", name)
        for index, word in enumerate(self.command or ()):
            try:
                substitute(word, dict.fromkeys(PLACEHOLDERS))
            except ValueError as error:
                raise LocatedError(str(error), "command", index) from None
        return self


_WARMUP_STEPS = 20


class Measure(Model):
    """How long a run is measured: one of ``epochs``, ``steps``, ``seconds`` is not None."""

    epochs: int | None = field(3, "a whole number >= 1 and <= 100,000", ge=1, le=100_000)
    warmup_epochs: int = field(
        1, "a whole number >= 0 and < epochs (warm-up is part of epochs)", ge=0
    )
    sample_hz: float = field(10.0, "samples per second, > 0 and <= 1000", gt=0, le=1000)
    evaluate: bool = field(True, "true or false")
    assume_cpu_w: float | None = field(
        None, "watts per busy core (> 0) for an estimate, or null for none", gt=0
    )
    steps: int | None = field(
        None, "optimizer steps after the warm-up, 1 to 10,000,000, or null", ge=1, le=MAX_COUNT
    )
    seconds: float | None = field(
        None, "seconds after the warm-up, > 0 and <= 10,000,000, or null", gt=0, le=MAX_COUNT
    )
    warmup_steps: int = field(
        _WARMUP_STEPS,
        "optimizer steps before steps or seconds, 0 to 10,000,000",
        ge=0,
        le=MAX_COUNT,
    )

    @property
    def epoch_count(self) -> int:
        """Return the number of measured epochs, warm-up included; 0 where steps are measured."""
        return self.epochs or 0

    @property
    def is_by_steps(self) -> bool:
        return self.epochs is None

    def __str__(self) -> str:
        if self.epochs is not None:
            return f"{self.epochs:,} epochs, {self.warmup_epochs:,} of them warm-up"
        block = f"{self.seconds:g} s" if self.steps is None else f"{self.steps:,} steps"
        return f"{block} after {self.warmup_steps:,} warm-up steps"

    @model_validator(mode="before")
    @classmethod
    def _without_epochs(cls, given: Any) -> Any:
        if not isinstance(given, dict) or given.get("steps") is given.get("seconds") is None:
            return given
        return {"epochs": None, "warmup_epochs": 0} | given

    @model_validator(mode="after")
    def _check_unit(self) -> Self:
        units = {"epochs": self.epochs, "steps": self.steps, "seconds": self.seconds}
        given = [name for name, value in units.items() if value is not None]
        if len(given) != 1:
            names = join_names(given) if given else "none"
            raise ValueError(f"given {names}; allowed: exactly one of epochs, steps and seconds")
        if self.epochs is None and self.warmup_epochs:
            raise LocatedError(
                f"given with {given[0]}; allowed: with epochs (else warmup_steps)", "warmup_epochs"
            )
        if self.epochs is not None and self.warmup_steps != _WARMUP_STEPS:
            raise LocatedError(
                "given with epochs; allowed: with steps or seconds (else warmup_epochs)",
                "warmup_steps",
            )
        if self.epochs is not None and self.warmup_epochs >= self.epochs:
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
    decide: Decide | None = field(None, "a mapping of settings of the decision, or null")

    @model_validator(mode="after")
    def _check_sweeps(self) -> Self:
        names, measure = {workload.name for workload in self.workloads}, self.measure
        for index, sweep in enumerate(self.sweeps):
            for position, name in enumerate(sweep.workloads or ()):
                if name not in names:
                    raise LocatedError(
                        f"given {quote(name)}; allowed: {join_names(sorted(names))}",
                        *("sweeps", index, "workloads", position),
                    )
            fault = None
            if sweep.epochs is not None and measure.is_by_steps:
                fault = "given with measure.steps or measure.seconds; allowed: with measure.epochs"
            elif sweep.epochs is not None and sweep.epochs <= measure.warmup_epochs:
                fault = (
                    f"given {sweep.epochs} with measure.warmup_epochs {measure.warmup_epochs}; "
                    "allowed: more than measure.warmup_epochs"
                )
            if fault is not None:
                raise LocatedError(fault, *("sweeps", index, "epochs"))
        covered = {name for sweep in self.sweeps for name in sweep.workloads or names}
        for index, workload in enumerate(self.workloads):
            if workload.name not in covered:
                raise LocatedError(
                    f"no sweep includes {workload.name}; allowed: one or more for each workload",
                    *("workloads", index),
                )
            if not measure.is_by_steps or workload.command is None:
                continue
            if workload.progress is None and workload.instrument == "none":
                raise LocatedError(
                    "given none with measure.steps or measure.seconds; allowed: auto, or progress",
                    *("workloads", index, "instrument"),
                )
            if workload.progress is not None and "(?P<step>" not in workload.progress.pattern:
                raise LocatedError(
                    "no group step; allowed: with measure.steps or measure.seconds, the group step",
                    *("workloads", index, "progress", "pattern"),
                )
        return self

    @model_validator(mode="after")
    def _check_decide(self) -> Self:
        decide, by_steps = self.decide, self.measure.is_by_steps
        if decide is None:
            return self
        lengths = {sweep.epochs or self.measure.epochs for sweep in self.sweeps}
        shares = {share for sweep in self.sweeps for share in sweep.dataset_fraction}
        precisions = {item for sweep in self.sweeps for item in sweep.precision}
        profiles = {item for sweep in self.sweeps for item in sweep.power_profile}
        targeted = decide.target is not None
        unknown = by_steps and not decide.lengths
        problems = (
            (len(self.workloads) > 1, "decide",
             f"given {len(self.workloads)} workloads; allowed: one workload in a study"),
            (len(lengths) > 1, "decide",
             "the sweeps differ in epochs; allowed: runs of one length"),
            (len(shares) > 1 or isinstance(next(iter(shares)), str), "decide",
             "the sweeps differ in dataset_fraction; allowed: one share of the data set"),
            (len(profiles) > 1, "decide",
             "the sweeps differ in power_profile; allowed: one power profile, or none"),
            (by_steps and targeted, "target",
             "given with measure.steps or measure.seconds; allowed: with measure.epochs"),
            (len(precisions) > 1 and targeted, "target",
             "given with several precisions; allowed: with one, since they learn differently"),
            (not self.measure.evaluate and targeted, "target",
             "given with measure.evaluate false; allowed: with evaluations"),
            *((unknown and getattr(decide, name) is not None, name,
               "the length of a training is not known; allowed: with total_samples, epochs or "
               "epochs_by_batch") for name in ("deadline", "energy_budget", "max_gpu_hours")),
        )  # fmt: skip
        for applies, key, text in problems:
            if applies:
                raise LocatedError(text, *dict.fromkeys(("decide", key)))
        return self


def _setting(given: Any) -> Setting:
    if isinstance(given, Setting):
        return given
    try:
        setting = Setting.of_record(given)
        batch = setting.global_batch if setting.model_gpus > 1 else setting.local_batch
        if batch is not None and batch != int(batch):
            raise BadInput("local_batch: allowed in a run: a whole number")
        return setting
    except (BadInput, TypeError, ValueError) as error:
        raise ValueError(str(error)) from None


class RunSpec(Model):
    """The specification of one run: everything its identity depends on, and nothing else."""

    workload: WorkloadSpec
    setting: Annotated[Setting, PlainValidator(_setting), PlainSerializer(Setting.to_record)]
    repeat: int = Field(ge=0)
    measure: Measure
    train: Train = Train()
    launch_kind: str
    hardware: str | None = None
    nodes: int = Field(default=1, ge=1)

    @property
    def local_batch(self) -> int | None:
        """Return the samples of a GPU in a step; None if they are not known or not whole."""
        batch = self.setting.local_batch
        return int(batch) if batch is not None and batch == int(batch) else None

    @property
    def global_batch(self) -> int | None:
        batch = self.setting.global_batch
        return None if batch is None else int(batch)

    @property
    def gradient_accumulation(self) -> int:
        """Return the parts of a step: those of a layout, or those that every setting has."""
        return max(self.setting.gradient_accumulation, self.train.gradient_accumulation)


_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def run_id(spec: RunSpec) -> str:
    return hashlib.sha256(canonical(spec).encode()).hexdigest()[:ID_DIGITS]


def canonical(model: BaseModel) -> str:
    """Return the canonical JSON of a run: sorted keys, defaults left out, 200.0 as 200.

    Defaults are left out so that a field that is added later does not change existing identities.
    """
    values = model.__dict__
    fields = _fields(type(model))
    pairs = [f'"{k}":{_json(values[k])}' for k, default in fields if values[k] != default]
    return f"{{{','.join(pairs)}}}"


@cache
def _fields(model: type[BaseModel]) -> list[tuple[str, object]]:
    return [
        (name, _REQUIRED if field.is_required() else field.get_default(call_default_factory=True))
        for name, field in sorted(model.model_fields.items())
    ]


def _json(value: object) -> str:
    if type(value) is int:  # most values of a large plan
        return str(value)
    if isinstance(value, Setting):
        batch = value.global_batch
        value = value.changed() | ({"global_batch": batch} if batch else {})
    return canonical(value) if isinstance(value, BaseModel) else _encode(_plain(value))


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
