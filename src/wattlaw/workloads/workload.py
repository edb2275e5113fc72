"""The seam for models: a ``Workload`` builds what one rank trains and says how it is judged."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel

if TYPE_CHECKING:
    import torch
    from torch import nn

Indices = npt.NDArray[np.int64]
Seeds = npt.NDArray[np.uint64]


class Work(NamedTuple):
    """What one epoch computes, for an estimate before anything has run."""

    samples: int
    flops_per_sample: float  # of a forward and backward pass, as ``training.flops`` counts them
    evaluation_samples: int


@dataclass(frozen=True)
class Entry:
    """What the command line needs to know of a workload without importing torch.

    Registered under the entry point ``wattlaw.workloads``.
    """

    name: str
    summary: str
    parameters: int
    metric: str  # the first of what ``judge`` tells beside the loss
    options: type[BaseModel]
    factory: str  # "package.module:Class"; called with the validated options
    better: Literal["higher", "lower"] = "higher"  # of the metric
    make_data: str | None = None  # "package.module:function"; called with (folder, size, seed)
    #: The work of an epoch with some options; None where they change the model's size.
    work: Callable[[Any], Work | None] | None = None
    #: The modules that a run imports, and the extra of wattlaw that installs them.
    modules: tuple[str, ...] = ("torch",)
    extra: str = "train"


@dataclass(frozen=True)
class Shard:
    """Which part of the data one rank sees."""

    rank: int
    world: int
    local_batch: int
    seed: int
    fraction: float = 1.0
    micro_batches: int = 1  # parts into which a rank's share of a step is cut

    @property
    def global_batch(self) -> int:
        """Return the samples of one step on all ranks."""
        return self.local_batch * self.world


class Batch(NamedTuple):
    """One rank's part of one step, or a piece of it."""

    data: Any  # tensors, or tuples, lists and dicts of them
    size: int  # samples in ``data``
    global_size: int  # samples of this step on all ranks
    ends_step: bool = True  # False when more pieces of the same step follow


class Dataset(Protocol):
    """Samples by number, in memory or in files.

    ``batch`` may be called in a process that was forked from the one that made the dataset: files
    are to be opened there, not before.
    """

    @property
    def reads_files(self) -> bool:
        """Say whether ``batch`` does enough work that loader processes pay."""

    def __len__(self) -> int:
        """Return how many samples there are."""

    def batch(self, indices: Indices, seeds: Seeds) -> Any:
        """Return some samples as one batch, on the CPU.

        Parameters
        ----------
        indices
            Which samples, shape (n,).
        seeds
            For each the seed of all that is drawn for it, such as augmentation. It depends on
            seed, epoch and sample only, so that ranks and loader processes change nothing.

        Raises
        ------
        wattlaw.errors.BadInput
            A sample cannot be read; the text names the file and the record.
        """


class Schedule(Protocol):
    """Sets an optimiser's learning rates as training goes on."""

    def before_step(self, epochs_done: float) -> None:
        """Set the rates for the next step; ``epochs_done`` counts its epoch's share too."""

    def after_epoch(self, loss: float | None) -> None:
        """Take note of an epoch's loss: of evaluation where there is one, else of training."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint must keep."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""


class Workload(Protocol):
    """A model and its data."""

    def model(self) -> "nn.Module":
        """Return a new model, initialised from torch's present seed."""

    def optimizer(
        self, model: "nn.Module", global_batch: int, *, fused: bool | None
    ) -> "torch.optim.Optimizer":
        """Return the optimiser of a model.

        ``fused`` is torch's: True asks for one kernel, None leaves the choice to torch. False
        would take its slowest way, one parameter after the other.
        """

    def schedule(
        self, optimizer: "torch.optim.Optimizer", global_batch: int, epochs: int
    ) -> Schedule:
        """Return how the learning rate changes over a run of so many epochs."""

    def training_data(self) -> Dataset:
        """Return what is trained on."""

    def evaluation_data(self) -> Dataset:
        """Return what is evaluated on."""

    def loss(self, model: "nn.Module", data: Any) -> "torch.Tensor":
        """Return the mean training loss over the samples of a batch."""

    def evaluate(self, model: "nn.Module", data: Any) -> "Mapping[str, torch.Tensor]":
        """Return sums over a batch's samples, so that batches and ranks add up; one is ``loss``."""

    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Return what an evaluation found: ``loss``, the entry's metric, and what else there is.

        ``sums`` are those of ``evaluate`` over all samples, and their number as ``samples``.
        """


def is_full_size(options: BaseModel, *names: str) -> bool:
    """Say whether some options are at their defaults."""
    fields = type(options).model_fields
    return all(getattr(options, name) == fields[name].default for name in names)


def means(sums: Mapping[str, float]) -> dict[str, float]:
    """Return each sum divided by the number of samples: the plainest ``judge``."""
    return {name: total / sums["samples"] for name, total in sums.items() if name != "samples"}
