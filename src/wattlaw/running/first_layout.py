"""The parallel layout of a first study: what a short run showed, and what is tried beside it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from wattlaw.study.command import Argument
from wattlaw.study.setting import MODEL_SIZES

_LEFT_OUT = (None, 1, "none")


@dataclass(frozen=True)
class SeenLayout:
    """What of a layout is not that of a data-parallel job."""

    sizes: dict[str, Any] = field(default_factory=dict)  # tp, pp, cp, ep, sharding
    network: Mapping[str, Any] | None = None  # sizes of the transformer

    @classmethod
    def of(cls, facts: Any, network: Mapping[str, Any] | None) -> "SeenLayout":
        sizes = {name: getattr(facts, name) for name in (*MODEL_SIZES, "ep", "sharding")}
        return cls({name: v for name, v in sizes.items() if v not in _LEFT_OUT}, network)

    @property
    def model_gpus(self) -> int:
        return prod(self.sizes.get(name, 1) for name in MODEL_SIZES)

    @property
    def text(self) -> str:
        return ", ".join(f"{name} {value}" if name != "sharding" else str(value)
                         for name, value in self.sizes.items())  # fmt: skip


def sweep_values(
    layout: SeenLayout, carried: Mapping[str, Argument], micro_batch: float | None, node: int
) -> dict[str, list[Any]]:
    """Return what of a layout a sweep has: what ran, and half and twice of what is an argument.

    Tensor parallel sizes stay within a node. Other sizes need those of the network: decisions
    predict them.
    """
    values: dict[str, list[Any]] = {}
    has_sizes = layout.model_gpus > 1 or "ep" in layout.sizes
    for name, seen in layout.sizes.items():
        if name in carried and name != "sharding" and layout.network is not None:
            around = {max(1, seen // 2), seen, 2 * seen}
            values[name] = sorted(v for v in around if v == seen or name != "tp" or v <= node)
        elif has_sizes or name in carried:
            values[name] = [seen]
    if micro_batch is not None and "micro_batch" in carried:
        around = {max(1, int(micro_batch) // 2), int(micro_batch), 2 * int(micro_batch)}
        values["micro_batch"] = sorted(around)
    return values
