"""The interface of workloads: a model with its data, its training recipe and its metrics."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    import torch
    from torch import nn

Indices = npt.NDArray[np.int64]
Seeds = npt.NDArray[np.uint64]

#: The variable with the folder for what a workload keeps for later runs; runs of a store share one.
DATA_CACHE = "WATTLAW_DATA_CACHE"


class Work(NamedTuple):
    """The work of one epoch, for an estimate before a run."""

    samples: int
    flops_per_sample: float  # of a forward and backward pass, as ``training.flops`` counts them
    evaluation_samples: int
    tokens_per_sample: int | None = None  # None: samples are no tokens


class RealInput(NamedTuple):
    """Files like those of a workload's real data, whose reading a profile measures."""

    options: Mapping[str, Any]  # of the workload, so that it reads the files
    batch: int  # samples that are read at once
    stored_bytes_per_sample: float
    method: str  # how they were made, and where the stored bytes are from


@dataclass(frozen=True)
class Entry:
    """The description of a workload, available without importing torch.

    Registered under the entry point ``wattlaw.workloads``.
    """

    name: str
    summary: str
    parameters: int
    metric: str  # the main result of ``Workload.metrics`` besides the loss
    options: type[BaseModel]
    factory: str  # "package.module:Class"; called with the validated options
    better: Literal["higher", "lower"] = "higher"  # of the metric
    make_data: str | None = None  # "package.module:function"; called with (folder, size, seed)
    #: "package.module:function" of a workload that trains on synthetic samples by default; called
    #: with (options, folder) to write files like the real ones. Returns ``RealInput``.
    real_input: str | None = None
    #: The work of an epoch with given options; None where they change the size of the model.
    work: Callable[[Any], Work | None] | None = None
    #: The modules that a run imports, and the extra of wattlaw that installs them.
    modules: tuple[str, ...] = ("torch",)
    extra: str = "train"
    #: Several ranks can share its model, which is a ``training.shared_models.Shareable``.
    shares_layers: bool = False


@dataclass(frozen=True)
class Shard:
    """The part of the data that one rank processes."""

    rank: int
    world: int
    local_batch: int
    seed: int
    fraction: float = 1.0
    micro_batches: int = 1  # gradient-accumulation steps of a rank's local batch

    @property
    def global_batch(self) -> int:
        return self.local_batch * self.world


class Batch(NamedTuple):
    """The samples of one rank in one step, or a micro-batch of them."""

    data: Any  # tensors, or tuples, lists and dicts of them
    size: int  # samples in ``data``
    global_size: int  # samples of this step on all ranks
    ends_step: bool = True  # False when another micro-batch of the same step follows


class Dataset(Protocol):
    """Samples by index, in memory or in files.

    ``batch`` may be called in a forked process: files must be opened there, not before.
    """

    @property
    def reads_files(self) -> bool:
        """Say whether ``batch`` does enough work for loader processes to be useful."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def batch(self, indices: Indices, seeds: Seeds) -> Any:
        """Return some samples as one batch, on the CPU.

        Parameters
        ----------
        indices
            Indices of the samples, shape (n,).
        seeds
            The random seed of each sample, such as for augmentation. It depends on seed, epoch and
            sample only, not on ranks or loader processes.

        Raises
        ------
        wattlaw.common.errors.BadInput
            A sample cannot be read; the text names the file and the record.
        """


class Schedule(Protocol):
    """Sets the learning rates of an optimizer during training."""

    def before_step(self, epochs_done: float) -> None:
        """Set the rates for the next step; ``epochs_done`` includes the fraction of its epoch."""

    def after_epoch(self, loss: float | None) -> None:
        """Report the loss of an epoch: of its evaluation, or of training without one."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of a checkpoint."""


class Workload(Protocol):
    """A model and its data."""

    def model(self) -> "nn.Module":
        """Return a new model, initialised with torch's current seed."""

    def optimizer(
        self, model: "nn.Module", global_batch: int, *, fused: bool | None
    ) -> "torch.optim.Optimizer":
        """Return the optimizer of a model.

        ``fused`` is torch's: True requests one kernel, None leaves the choice to torch. False would
        select the slowest implementation, one parameter after the other.
        """

    def schedule(
        self, optimizer: "torch.optim.Optimizer", global_batch: int, epochs: int
    ) -> Schedule:
        """Return the learning-rate schedule of a run of ``epochs``."""

    def training_data(self) -> Dataset:
        """Return the training data."""

    def evaluation_data(self) -> Dataset:
        """Return the evaluation data."""

    def loss(self, model: "nn.Module", data: Any) -> "torch.Tensor":
        """Return the mean training loss of a batch."""

    def evaluate(self, model: "nn.Module", data: Any) -> "Mapping[str, torch.Tensor]":
        """Return sums over the samples of a batch, ``loss`` among them; sums add over batches."""

    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Return the results of an evaluation: ``loss``, the entry's metric, and others.

        ``sums`` are those of ``evaluate`` over all samples, with their number as ``samples``.
        """


class Constant:
    """A learning rate that does not change."""

    def before_step(self, epochs_done: float) -> None: ...

    def after_epoch(self, loss: float | None) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class BaseWorkload(ABC):
    """The base of the workloads of wattlaw: a constant learning rate, and means as metrics."""

    def schedule(
        self,
        optimizer: "torch.optim.Optimizer",  # noqa: ARG002
        global_batch: int,  # noqa: ARG002
        epochs: int,  # noqa: ARG002
    ) -> Schedule:
        return Constant()

    def training_data(self) -> Dataset:
        return self._data(training=True)

    def evaluation_data(self) -> Dataset:
        return self._data(training=False)

    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        return {name: total / sums["samples"] for name, total in sums.items() if name != "samples"}

    @abstractmethod
    def _data(self, *, training: bool) -> Dataset: ...


class WorkloadOptions(BaseModel):
    """Base of the options of a workload. Their defaults are part of the identity of every run."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


def whole_number(default: int, text: str, low: int = 1, high: int | None = None) -> Any:
    """Return the field of an option that is a whole number in a range, with its description."""
    allowed = f"a whole number >= {low}" if high is None else f"{low} to {high}"
    return Field(default=default, ge=low, le=high, description=f"{text} ({allowed})")


def is_full_size(options: BaseModel, *names: str) -> bool:
    fields = type(options).model_fields
    return all(getattr(options, name) == fields[name].default for name in names)
