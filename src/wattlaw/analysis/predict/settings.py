"""What can be measured or predicted: a training setting, and the observation of one."""

from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt

from wattlaw.analysis.metrics.result import Result
from wattlaw.common.errors import BadInput

Floats = npt.NDArray[np.float64]

#: Parts of a step that a run may have measured.
PARTS = ("communication_s", "waiting_s", "input_s")


@dataclass(frozen=True)
class TrainingSetting(Result):
    """One way to run a training job; None is what is not known, or no limit.

    With ``nodes`` alone, the GPUs are placed as evenly as possible; ``packed`` returns a setting
    with the fewest nodes. Without a local batch, times are those of a constant amount of work per
    GPU.

    Raises
    ------
    BadInput
        A number is out of its range, or nodes and GPUs per node contradict each other.
    """

    gpus: int
    nodes: int | None = None
    gpus_per_node: tuple[int, ...] | None = None  # on each node, such as ``(4, 4)`` or ``(1, 3)``
    local_batch: float | None = None  # samples that each GPU processes in an optimizer step
    gradient_accumulation: int = 1  # parts in which a GPU processes its local batch
    precision: str | None = None  # of the arithmetic, such as ``"bf16"``
    power_limit_w: float | None = None  # of each GPU
    clock_limit_mhz: float | None = None  # of each GPU
    properties = ("global_batch",)

    def __post_init__(self) -> None:
        for name in ("gpus", "nodes", "gradient_accumulation"):
            value = getattr(self, name)
            if value is not None and (value != int(value) or value < 1):
                raise BadInput(f"{name}: given {value!r}; allowed: a whole number >= 1")
        for name in ("local_batch", "power_limit_w", "clock_limit_mhz"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise BadInput(f"{name}: given {value!r}; allowed: a number > 0")
        if self.gpus_per_node is None:
            if self.nodes is not None:
                self._set("gpus_per_node", self._even(self.nodes))
            return
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
        self._set("gpus_per_node", placement)
        self._set("nodes", len(placement))

    @classmethod
    def packed(cls, gpus: int, node_gpus: int, **values: Any) -> "TrainingSetting":
        """Return a setting on the fewest nodes of ``node_gpus`` GPUs each."""
        full, rest = divmod(gpus, node_gpus)
        return cls(gpus, gpus_per_node=(node_gpus,) * full + (rest,) * (rest > 0), **values)

    @property
    def global_batch(self) -> float | None:
        """Return the samples of an optimizer step of all GPUs."""
        return None if self.local_batch is None else self.local_batch * self.gpus

    @property
    def samples(self) -> float:
        """Return the samples of an optimizer step; with an unknown batch, one for each GPU."""
        return self.gpus * (self.local_batch or 1.0)

    def _even(self, nodes: int) -> tuple[int, ...]:
        if nodes > self.gpus:
            raise BadInput(f"nodes: given {nodes} for {self.gpus} GPUs; allowed: 1 to {self.gpus}")
        most = ceil(self.gpus / nodes)
        full = self.gpus - (most - 1) * nodes
        return (most,) * full + (most - 1,) * (nodes - full)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


@lru_cache(maxsize=1024)
def _placement(gpus_per_node: tuple[int, ...]) -> tuple[tuple[int, ...], int, int]:
    """Return the counts from most to least, their sum and the least."""
    placement = tuple(sorted(map(int, gpus_per_node), reverse=True))
    return placement, sum(placement), min(placement, default=0)


@dataclass(frozen=True)
class Observation(Result):
    """A measured setting.

    Communication is the part that the backward pass does not hide; without ``waiting_s`` it
    includes that wait.

    Raises
    ------
    BadInput
        A time or power is not a number above 0, or a part is below 0.
    """

    setting: TrainingSetting
    step_time_s: float  # mean of an optimizer step
    power_per_gpu_w: float | None = None  # mean over the same time, if it was measured
    #: A name that runs of one job submission or day share. Without it, runs with the same placement
    #: count as one session.
    session: str | None = None
    communication_s: float | None = None  # parts of the step time, if they were measured
    waiting_s: float | None = None  # the mean wait of a rank for the slowest
    input_s: float | None = None  # the wait for samples
    #: Steps over which the time of an epoch was divided; None if ``step_time_s`` is of steps alone,
    #: without what an epoch takes beside them.
    epoch_steps: float | None = None

    def __post_init__(self) -> None:
        for name in ("step_time_s", "power_per_gpu_w", "epoch_steps"):
            value = getattr(self, name)
            if (name == "step_time_s" or value is not None) and not 0 < value < float("inf"):
                raise BadInput(f"{name}: given {value!r}; allowed: a number > 0")
        for name in PARTS:
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise BadInput(f"{name}: given {value!r}; allowed: a number >= 0")
