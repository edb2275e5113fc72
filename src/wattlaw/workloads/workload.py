"""The seam for models: a ``Workload`` builds what one rank trains and says how it is judged."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pydantic import BaseModel

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True)
class Entry:
    """What the command line needs to know of a workload without importing torch.

    Registered under the entry point ``wattlaw.workloads``.
    """

    name: str
    summary: str
    parameters: int
    metric: str
    options: type[BaseModel]
    factory: str  # "package.module:Class"; called with the validated options


@dataclass(frozen=True)
class Shard:
    """Which part of the data one rank sees."""

    rank: int
    world: int
    local_batch: int
    seed: int
    fraction: float = 1.0

    @property
    def global_batch(self) -> int:
        """Return the samples of one update on all ranks."""
        return self.local_batch * self.world


class Batch(NamedTuple):
    """One rank's part of one update."""

    data: Any  # tensors, or tuples, lists and dicts of them
    size: int  # samples in ``data``
    global_size: int  # samples of this update on all ranks


class Loader(Protocol):
    """Gives the batches of an epoch; every rank gets the same number of them."""

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """Yield this rank's batches; training data are shuffled by (seed, epoch)."""


class Sums(NamedTuple):
    """Evaluation of one batch, as sums over its samples so that batches and ranks add up."""

    loss: "torch.Tensor"
    metric: "torch.Tensor"


class Workload(Protocol):
    """A model and its data."""

    def model(self) -> "nn.Module":
        """Return a new model, initialised from torch's present seed."""

    def optimizer(self, model: "nn.Module", global_batch: int) -> "torch.optim.Optimizer":
        """Return the optimiser of a model."""

    def training_loader(self, shard: Shard) -> Loader:
        """Return the loader of a rank's training data."""

    def evaluation_loader(self, shard: Shard) -> Loader:
        """Return the loader of a rank's evaluation data; ranks may get different numbers."""

    def loss(self, model: "nn.Module", data: Any) -> "torch.Tensor":
        """Return the mean training loss over the samples of a batch."""

    def evaluate(self, model: "nn.Module", data: Any) -> Sums:
        """Return loss and metric of a batch, summed over its samples."""
