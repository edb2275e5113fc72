"""The settings of a job as arrays, relative to a reference that observations define."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wattlaw.analysis.predict.observation import Floats, Observation
from wattlaw.study.setting import Setting

#: Power of a GPU where neither power nor a limit was observed: only limits need it.
_ASSUMED_W = 250.0


@dataclass(frozen=True)
class Reference:
    micro_batch: float
    compute_s: float
    power_w: float
    gpus: float
    clock_mhz: float
    precisions: tuple[str | None, ...]

    @classmethod
    def of(cls, observations: Sequence[Observation]) -> "Reference":
        micro = _micro([item.setting for item in observations])
        counts = [item.setting.gradient_accumulation for item in observations]
        part_s = np.array([item.healthy_step_s for item in observations]) / counts
        batch = float(np.exp(np.log(micro).mean()))
        powers = [item.power_per_gpu_w for item in observations if item.power_per_gpu_w]
        gpus = np.array([item.setting.gpus for item in observations])
        observed = [item.setting for item in observations]
        limits = [each.power_limit_w for each in observed if each.power_limit_w]
        # The least time of a micro-batch, interpolated in logs between measured batches.
        batches = np.unique(micro)
        least_s = [part_s[micro == each].min() for each in batches]
        clocks = [each.clock_limit_mhz for each in observed if each.clock_limit_mhz]
        names = dict.fromkeys(each.precision for each in observed)
        return cls(
            micro_batch=batch,
            compute_s=float(np.exp(np.interp(np.log(batch), np.log(batches), np.log(least_s)))),
            power_w=max(powers, default=max(limits, default=_ASSUMED_W)),
            gpus=float(np.exp(np.log(gpus).mean())),
            clock_mhz=max(clocks, default=1.0),
            precisions=tuple(names),
        )


class Paths(NamedTuple):
    """What the time of an all-reduce in the largest node and between nodes depends on."""

    inside: Floats  # the volume on a ring
    inside_hops: Floats
    between: Floats
    between_hops: Floats
    log_sharing: Floats
    log_contention: Floats
    is_on_two: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, gpus: Floats, nodes: Floats, most: Floats, sharing: Floats) -> "Paths":
        # Three nodes are the fewest that share a network; two are a case of their own.
        return cls(
            2 * (most - 1) / most,
            np.minimum(most - 1, 2 * np.log2(most)),
            2 * (gpus - 1) / gpus * (nodes > 1),
            np.minimum(nodes - 1, 2 * np.log2(nodes)),
            np.log(sharing),
            np.log(np.maximum(nodes, 3.0) / 3.0),
            nodes == 2,
        )


@dataclass(frozen=True)
class Layout:
    """Settings as arrays; the attributes have one value for each setting."""

    reference: Reference
    gpus: Floats
    nodes: Floats
    most_on_node: Floats
    sharing: Floats  # GPUs that share a node's adapter: mean and most, in geometric mean
    is_placed: npt.NDArray[np.bool_]
    has_batch: npt.NDArray[np.bool_]
    micro: Floats  # relative to the reference
    parts: Floats
    slowest: Floats  # expected maximum of so many standard normal numbers
    precision: npt.NDArray[np.int64]
    power_limit_w: Floats  # inf without
    clock_limit_mhz: Floats  # inf without
    epoch_steps: Floats  # over which the fixed time of an epoch is divided; inf without it

    @cached_property
    def columns(self) -> "Layout":
        """The same settings, with attributes of shape (settings, 1)."""
        return self.only((slice(None), None))

    @cached_property
    def has_limits(self) -> bool:
        return bool(np.isfinite([self.power_limit_w, self.clock_limit_mhz]).any())

    @cached_property
    def has_epochs(self) -> bool:
        return bool(np.isfinite(self.epoch_steps).any())

    @cached_property
    def has_inside(self) -> bool:
        return bool(((self.most_on_node > 1) | (~self.is_placed & (self.gpus > 1))).any())

    @cached_property
    def has_between(self) -> bool:
        return bool((self.is_between & (self.gpus > 1)).any())

    @cached_property
    def is_between(self) -> npt.NDArray[np.bool_]:
        return (self.nodes > 1) | ~self.is_placed

    @cached_property
    def is_placed_everywhere(self) -> bool:
        return bool(self.is_placed.all())

    @cached_property
    def has_every_batch(self) -> bool:
        return bool(self.has_batch.all())

    @cached_property
    def paths(self) -> "Paths":
        return Paths.of(self.gpus, self.nodes, self.most_on_node, self.sharing)

    @cached_property
    def kinds(self) -> tuple["Layout", npt.NDArray[np.int64]]:
        """Return a setting for each combination of batch, precision and limits, and which is whose.

        What a limit does to kernels is the same on any number of GPUs.
        """
        columns = [self.micro, self.precision, self.power_limit_w, self.clock_limit_mhz]
        _, first, which = np.unique(
            np.column_stack(columns), axis=0, return_index=True, return_inverse=True
        )
        return self.only(first), which.ravel()

    @cached_property
    def other_precisions(self) -> tuple[int, ...]:
        return tuple(int(index) for index in np.unique(self.precision) if index > 0)

    @classmethod
    def of(cls, settings: Sequence[Setting], reference: Reference) -> "Layout":

        def array(values: Any) -> Floats:
            return np.array(list(values), dtype=float)

        gpus = array(item.gpus for item in settings)
        nodes = array(item.nodes or 1 for item in settings)
        most = array(max(item.gpus_per_node or (1,)) for item in settings)
        infinite = float("inf")
        places = {name: place for place, name in enumerate(reference.precisions)}
        return cls(
            reference=reference,
            gpus=gpus,
            nodes=nodes,
            most_on_node=most,
            sharing=np.sqrt(gpus / nodes * most),
            is_placed=np.array([item.gpus_per_node is not None for item in settings]),
            has_batch=np.array([item.local_batch is not None for item in settings]),
            micro=_micro(settings) / reference.micro_batch,
            parts=array(item.gradient_accumulation for item in settings),
            # The expected maximum of so many standard normal numbers (Blom 1958). Not by scipy:
            # its import takes longer than the inference of a small job.
            slowest=array(
                NormalDist().inv_cdf((item.gpus - 0.375) / (item.gpus + 0.25))
                if item.gpus > 1
                else 0.0
                for item in settings
            ),
            # Of a precision that no run has, the place is after all observed ones.
            precision=np.array([places.get(item.precision, len(places)) for item in settings]),
            power_limit_w=array(item.power_limit_w or infinite for item in settings),
            clock_limit_mhz=array(item.clock_limit_mhz or infinite for item in settings),
            epoch_steps=np.full(len(settings), infinite),
        )

    @classmethod
    def of_observations(cls, observations: Sequence[Observation], reference: Reference) -> "Layout":
        steps = [item.epoch_steps or float("inf") for item in observations]
        layout = cls.of([item.setting for item in observations], reference)
        return replace(layout, epoch_steps=np.array(steps))

    def only(self, chosen: Any) -> "Layout":
        arrays = {
            item.name: getattr(self, item.name)[chosen]
            for item in fields(self)
            if item.name != "reference"
        }
        return replace(self, **arrays)


def _micro(settings: Sequence[Setting]) -> Floats:
    """Return the samples of micro-batches; a batch that is not known is one sample."""
    return np.array([item.samples / item.gpus / item.gradient_accumulation for item in settings])
