"""A sweep of a study file: a grid of settings, and the rules of its shares of the data set."""

import math
import re
from typing import Annotated, Any, Self

from pydantic import Field, PlainValidator, model_validator
from pydantic_core import PydanticCustomError

from wattlaw.study.base_model import (
    CHECKPOINTINGS,
    MAX_COUNT,
    POWER_PROFILES,
    SHARDINGS,
    Checkpointing,
    Count,
    LocatedError,
    Model,
    Name,
    OwnPrecision,
    Positive,
    PowerProfile,
    Sharding,
    field,
)
from wattlaw.study.setting import LAYOUT_NAMES

_COUNTS = "a list of whole numbers >= 1"
_LIMITS = "a list of numbers > 0, or null for no limit"
_PROFILES = f"a list of power profiles, or null for none: {', '.join(POWER_PROFILES)}"
_FRACTION_RULE = re.compile(r"gpus/[1-9][0-9]{0,6}|[1-9][0-9]{0,6}/gpus")
_FRACTIONS = "a list of numbers > 0 and <= 1, or of rules such as gpus/256 or 1/gpus"


def parse_fraction(given: Any) -> float | str:
    """Return a fraction of the data set, or a rule that computes it from the number of GPUs."""
    if isinstance(given, str) and _FRACTION_RULE.fullmatch(given):
        return given
    if isinstance(given, int | float) and not isinstance(given, bool) and 0 < given <= 1:
        return float(given)
    raise PydanticCustomError("fraction", _FRACTIONS)


def evaluate_fraction(rule: float | str, gpus: int) -> float:
    if isinstance(rule, float):
        return rule
    numerator, denominator = (gpus if part == "gpus" else int(part) for part in rule.split("/"))
    return numerator / denominator


class Emulation(Model):
    gpus: tuple[Count, ...] = Field(min_length=1, description=_COUNTS)


class Sweep(Model):
    gpus: tuple[Count, ...] = Field(min_length=1, description=_COUNTS)
    local_batch: tuple[Count, ...] | None = field(None, _COUNTS)
    global_batch: tuple[Count, ...] | None = field(None, _COUNTS)
    power_limit_w: tuple[Positive | None, ...] = field((None,), _LIMITS, min_length=1)
    clock_limit_mhz: tuple[Positive | None, ...] = field((None,), _LIMITS, min_length=1)
    power_profile: tuple[PowerProfile | None, ...] = field((None,), _PROFILES, min_length=1)
    precision: tuple[OwnPrecision, ...] = field(
        ("fp32",), "a list of: fp32, tf32, bf16, fp16", min_length=1
    )
    dataset_fraction: tuple[Annotated[Any, PlainValidator(parse_fraction)], ...] = field(
        (1.0,), _FRACTIONS, min_length=1
    )
    tp: tuple[Count, ...] = field((1,), _COUNTS, min_length=1)
    pp: tuple[Count, ...] = field((1,), _COUNTS, min_length=1)
    cp: tuple[Count, ...] = field((1,), _COUNTS, min_length=1)
    ep: tuple[Count, ...] = field((1,), _COUNTS, min_length=1)
    virtual_stages: tuple[Count, ...] = field((1,), _COUNTS, min_length=1)
    sharding: tuple[Sharding, ...] = field(
        ("none",), f"a list of: {', '.join(SHARDINGS)}", min_length=1
    )
    checkpointing: tuple[Checkpointing, ...] = field(
        ("none",), f"a list of: {', '.join(CHECKPOINTINGS)}", min_length=1
    )
    sequence_parallel: tuple[bool, ...] = field((False,), "a list of true, false", min_length=1)
    micro_batch: tuple[Count, ...] | None = field(
        None, "a list of samples that a copy of the model processes at once, or null", min_length=1
    )
    workloads: tuple[Name, ...] | None = field(
        None, "a list of workloads' names, or null for all", min_length=1
    )
    epochs: int | None = field(
        None, "a whole number >= 1 and <= 100,000, or null for measure's", ge=1, le=100_000
    )
    nodes: tuple[Count, ...] | None = field(
        None, "a list of whole numbers >= 1, or null for the least number of nodes", min_length=1
    )
    emulate: Emulation | None = field(None, "a mapping {gpus: [...]}, or null")

    @property
    def has_layouts(self) -> bool:
        names = LAYOUT_NAMES
        return any(getattr(self, name) != type(self).model_fields[name].default for name in names)

    @model_validator(mode="after")
    def _check_nodes(self) -> Self:
        for index, nodes in enumerate(self.nodes or ()):
            if indivisible := [workers for workers in self.gpus if workers % nodes]:
                raise LocatedError(
                    f"given {nodes} with {indivisible[0]} gpus; allowed: a number of nodes that "
                    "divides every GPU count",
                    *("nodes", index),
                )
        return self

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
        what, shared_by = "gpus", self.gpus
        if self.emulate is not None:
            what, shared_by = "emulate.gpus", self.emulate.gpus
            if self.global_batch is None:
                raise LocatedError(
                    "given with local_batch; allowed: with global_batch, of which each emulated "
                    "GPU gets its share",
                    "emulate",
                )
            if min(shared_by) <= max(self.gpus):
                raise LocatedError(
                    f"given {min(shared_by)} with {max(self.gpus)} gpus; allowed: more than every "
                    "entry of gpus",
                    *("emulate", "gpus", shared_by.index(min(shared_by))),
                )
        # One pass over each list: nested loops would be slow for long lists.
        every_count = 1
        for workers in shared_by:
            if (every_count := math.lcm(every_count, workers)) > MAX_COUNT:
                break  # larger than any batch
        for batch in () if self.has_layouts else self.global_batch or ():
            if batch % every_count:
                workers = next(workers for workers in shared_by if batch % workers)
                raise ValueError(
                    f"global_batch {batch} with {workers} {what}; "
                    "allowed: a global batch that every GPU count divides"
                )
        for index, rule in enumerate(self.dataset_fraction):
            for workers in (min(self.gpus), max(self.gpus)):
                if evaluate_fraction(rule, workers) > 1:
                    raise LocatedError(
                        f"given {rule}, with {workers} gpus more than 1; allowed: {_FRACTIONS}",
                        *("dataset_fraction", index),
                    )
        return self
