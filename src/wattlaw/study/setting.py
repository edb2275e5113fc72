"""The setting of a training job: one type from the study file to the page."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from math import ceil
from numbers import Real
from typing import Any, Self, get_args

from wattlaw.common.errors import BadInput
from wattlaw.common.text import short_repr
from wattlaw.study.base_model import (
    CHECKPOINTINGS,
    MAX_COUNT,
    POWER_PROFILES,
    SHARDINGS,
    Checkpointing,
    PowerProfile,
    Precision,
    Sharding,
)

#: What the record of a run always names, and the columns of its setting.
RECORDED = (
    "gpus", "global_batch", "local_batch", "power_limit_w", "clock_limit_mhz", "power_profile",
    "precision", "dataset_fraction", "emulated_gpus",
)  # fmt: skip
#: What a result of an analysis always names.
_SHOWN = (
    "gpus", "nodes", "gpus_per_node", "local_batch", "global_batch", "gradient_accumulation",
    "precision", "power_limit_w", "clock_limit_mhz",
)  # fmt: skip
_COUNTS = (
    "gpus", "nodes", "gradient_accumulation", "emulated_gpus", "tp", "pp", "cp", "ep",
    "virtual_stages",
)  # fmt: skip
#: The parallel layout, beside GPUs, nodes and gradient accumulation.
LAYOUT = (
    "tp", "pp", "cp", "ep", "virtual_stages", "sharding", "checkpointing", "sequence_parallel",
)  # fmt: skip
#: Sizes whose product is the GPUs of one copy of the model.
MODEL_SIZES = LAYOUT[:3]
#: What a user names of a layout.
LAYOUT_NAMES = (*LAYOUT, "micro_batch")
_LIMITS = ("power_limit_w", "clock_limit_mhz")
#: The words that a setting may be.
CHOICES: dict[str, tuple[str, ...]] = {
    "precision": get_args(Precision),
    "power_profile": POWER_PROFILES,
    "sharding": SHARDINGS,
    "checkpointing": CHECKPOINTINGS,
}


@dataclass(frozen=True)
class Setting:
    """One way to run a training job; None is what is not known, or no limit.

    With ``nodes`` alone, the GPUs are placed as evenly as possible; ``packed`` returns a setting
    with the fewest nodes. Without a local batch, times are those of a constant amount of work per
    GPU. The defaults of the parallel layout are those of a data-parallel job: the model is copied
    ``dp = gpus / (tp pp cp)`` times. ``BadInput`` if a value is out of its range, sizes of the
    layout do not divide, or nodes and GPUs per node contradict each other.

    A default is part of the identity of every run (see ``model.canonical``) and must never change.
    """

    gpus: int
    nodes: int | None = None
    gpus_per_node: tuple[int, ...] | None = None  # on each node, such as ``(4, 4)`` or ``(1, 3)``
    local_batch: float | None = None  # samples of an optimizer step for each GPU
    gradient_accumulation: int = 1  # micro-batches of an optimizer step
    precision: Precision | None = "fp32"
    power_limit_w: float | None = None  # of each GPU
    clock_limit_mhz: float | None = None  # of each GPU
    power_profile: PowerProfile | None = None
    dataset_fraction: float = 1.0  # of the data set, in an epoch
    emulated_gpus: int | None = None  # of a job whose local batch these GPUs train
    tp: int = 1  # GPUs that share each layer: tensor parallel
    pp: int = 1  # stages of the pipeline
    cp: int = 1  # GPUs that share each sequence: context parallel
    ep: int = 1  # GPUs that share the experts, among the copies of the model
    virtual_stages: int = 1  # of each stage of the pipeline (interleaved schedule)
    sharding: Sharding = "none"  # of optimizer, gradients and parameters between copies
    checkpointing: Checkpointing = "none"  # activations that the backward pass computes again
    sequence_parallel: bool = False  # activations between layers are shared by the tp GPUs
    #: Versions by name. They are facts: two runs of one setting may differ in them.
    software: tuple[tuple[str, str], ...] = field(default=(), compare=False)

    __repr__ = short_repr

    def __post_init__(self) -> None:
        for name in _COUNTS:
            value = getattr(self, name)
            if type(value) is int and 0 < value <= MAX_COUNT:
                continue
            if value is None and name in ("nodes", "emulated_gpus"):
                continue
            if not _in_range(value, MAX_COUNT) or value != int(value):
                raise BadInput(f"{name}: given {value!r}; allowed: a whole number >= 1")
        for name in ("local_batch", *_LIMITS):
            value = getattr(self, name)
            if value is not None and not _in_range(value):
                raise BadInput(f"{name}: given {value!r}; allowed: a number > 0")
            if value is not None and name in _LIMITS:
                _set(self, name, float(value))
        for name, allowed in CHOICES.items():
            value = getattr(self, name)
            if value is not None and value not in allowed:
                raise BadInput(f"{name}: given {value!r}; allowed: {', '.join(allowed)}")
        share = self.dataset_fraction
        if not _in_range(share, 1):
            raise BadInput(f"dataset_fraction: given {share!r}; allowed: a number > 0 and <= 1")
        _set(self, "dataset_fraction", float(share))
        self._check_layout()
        self._place()

    def _check_layout(self) -> None:
        if type(self.sequence_parallel) is not bool:
            given = self.sequence_parallel
            raise BadInput(f"sequence_parallel: given {given!r}; allowed: true or false")
        if self.gpus % self.model_gpus:
            text = f"tp x pp x cp: given {self.tp} x {self.pp} x {self.cp} for {self.gpus} GPUs"
            raise BadInput(f"{text}; allowed: sizes whose product divides them")
        if (self.dp * self.cp) % self.ep:
            copies = self.dp * self.cp
            raise BadInput(f"ep: given {self.ep}; allowed: a size that divides dp x cp, {copies}")

    def _place(self) -> None:
        if self.gpus_per_node is not None:
            placement, total, least = _placement(tuple(self.gpus_per_node))
            if total != self.gpus or least < 1:
                raise BadInput(
                    f"gpus_per_node: given {self.gpus_per_node} for {self.gpus} GPUs; "
                    "allowed: counts >= 1 that add up to the GPUs"
                )
            if self.nodes is not None and self.nodes != len(placement):
                raise BadInput(
                    f"nodes: given {self.nodes} and gpus_per_node {self.gpus_per_node}; "
                    "allowed: one count for each node"
                )
            _set(self, "gpus_per_node", placement)
            _set(self, "nodes", len(placement))
        elif self.nodes is not None:
            _set(self, "gpus_per_node", _even(self.gpus, self.nodes))

    @classmethod
    def packed(cls, gpus: int, node_gpus: int, **values: Any) -> Self:
        """Return a setting on the fewest nodes of ``node_gpus`` GPUs each."""
        full, rest = divmod(gpus, node_gpus)
        return cls(gpus, gpus_per_node=(node_gpus,) * full + (rest,) * (rest > 0), **values)

    def on_nodes_of(self, node_gpus: int) -> Self:
        placed = self.packed(self.gpus, node_gpus)
        return replace(self, nodes=placed.nodes, gpus_per_node=placed.gpus_per_node)

    @classmethod
    def of_record(cls, values: Mapping[str, Any]) -> Self:
        """Return the setting of ``to_record``; a global batch must be that of the local one."""
        given = dict(values)
        batch = given.pop("global_batch", None)
        if unknown := sorted(given.keys() - _DEFAULTS.keys()):
            raise BadInput(f"unknown setting {unknown[0]!r}; allowed: {', '.join(_DEFAULTS)}")
        setting = cls(**given)
        if batch != setting.global_batch:
            raise BadInput("global_batch must be gpus x local_batch")
        return setting

    def to_record(self) -> dict[str, Any]:
        """Return plain values: those of ``RECORDED``, and others that are not a default."""
        return self._plain(RECORDED)

    def to_dict(self) -> dict[str, Any]:
        return self._plain(_SHOWN)

    def changed(self) -> dict[str, Any]:
        named = ((name, getattr(self, name), default) for name, default in _DEFAULTS.items())
        return {name: value for name, value, default in named if value != default}

    def _plain(self, names: tuple[str, ...]) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in names} | self.changed()
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
        }

    @property
    def global_batch(self) -> float | None:
        return None if self.local_batch is None else _whole(self.local_batch * self.gpus)

    @property
    def layout(self) -> dict[str, Any]:
        """Return what of the layout is not that of a data-parallel job, and then micro-batches."""
        changed = self.changed()
        layout = {name: changed[name] for name in LAYOUT if name in changed}
        if layout:
            layout["gradient_accumulation"] = self.gradient_accumulation
        return layout

    @property
    def model_gpus(self) -> int:
        """Return the GPUs that share one copy of the model."""
        return self.tp * self.pp * self.cp

    @property
    def dp(self) -> int:
        """Return the copies of the model."""
        return self.gpus // self.model_gpus

    @property
    def micro_batch(self) -> float | None:
        """Return the samples that a copy of the model processes at once."""
        if self.local_batch is None:
            return None
        return _whole(self.local_batch * self.model_gpus / self.gradient_accumulation)

    def in_micro_batches(self, samples: int) -> Self:
        """Return the setting with micro-batches of so many samples; ``BadInput`` if they do not
        make up the global batch."""
        parts, rest = divmod(self.global_batch or 0, self.dp * samples)
        if rest or not parts:
            text = f"micro_batch: given {samples} for a global batch of {self.global_batch}"
            raise BadInput(f"{text} and dp {self.dp}; allowed: a divisor of their ratio")
        return replace(self, gradient_accumulation=int(parts))

    @property
    def samples(self) -> float:
        """Return the samples of an optimizer step; with an unknown batch, one for each GPU."""
        return self.gpus * (self.local_batch or 1.0)


def layout_of(setting: Setting) -> tuple[Any, ...]:
    """Return the parallel layout, without GPUs and micro-batches."""
    return tuple(getattr(setting, name) for name in LAYOUT)


_set = object.__setattr__
_DEFAULTS = {item.name: item.default for item in fields(Setting) if item.compare}


def _whole(samples: float) -> float:
    """Return samples without the rounding of a share that is divided and multiplied again."""
    whole = round(samples)
    return type(samples)(whole) if abs(samples - whole) <= 1e-9 * whole else samples


def _in_range(value: object, most: float = sys.float_info.max) -> bool:
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    return is_number and 0 < value <= most  # type: ignore[operator]


@lru_cache(maxsize=1024)
def _even(gpus: int, nodes: int) -> tuple[int, ...]:
    if nodes > gpus:
        raise BadInput(f"nodes: given {nodes} for {gpus} GPUs; allowed: 1 to {gpus}")
    most = ceil(gpus / nodes)
    full = gpus - (most - 1) * nodes
    return (most,) * full + (most - 1,) * (nodes - full)


@lru_cache(maxsize=1024)
def _placement(gpus_per_node: tuple[int, ...]) -> tuple[tuple[int, ...], int, int]:
    placement = tuple(sorted(map(int, gpus_per_node), reverse=True))
    return placement, sum(placement), min(placement, default=0)
