"""Brings a dataset's batches to a rank: in its own process, or through loader processes."""

import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Sampler

from wattlaw import processes
from wattlaw.errors import BadInput
from wattlaw.workloads.batches import (
    Part,
    evaluation_parts,
    sample_seeds,
    steps_per_epoch,
    training_parts,
)
from wattlaw.workloads.workload import Batch, Dataset, Indices, Seeds, Shard

#: More loader processes than this per rank help no disk that we know of.
_MOST_WORKERS = 8
#: Evaluation draws the same for a sample in every epoch, and something else than training.
_EVALUATION_EPOCH = 2**31


@dataclass(frozen=True)
class LoaderOptions:
    """How batches come."""

    workers: int | None = None  # loader processes of a rank; None: as dataset and cores suggest
    prefetch: int = 2  # batches that each of them has ready
    pin_memory: bool = False  # page-locked memory, from which a GPU copies beside its work
    handles_sigterm: bool = (
        True  # whether a SIGTERM to the whole process tree ends loader processes
    )

    def workers_for(self, dataset: Dataset, ranks_here: int) -> int:
        """Return how many loader processes a rank is to have on a host with so many ranks."""
        if self.workers is not None:
            return self.workers
        spare = processes.cores() // ranks_here - 1
        return max(0, min(_MOST_WORKERS, spare)) if dataset.reads_files else 0


def _ignore_sigterm(_: int) -> None:
    """Have a loader process go on: it ends with its rank, which decides when."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


class Loader:
    """Gives a rank's batches of an epoch; every rank makes the same number of steps."""

    def __init__(
        self,
        dataset: Dataset,
        shard: Shard,
        feed: LoaderOptions,
        *,
        training: bool,
        ranks_here: int = 1,
    ) -> None:
        self._samples, self._shard, self._training = len(dataset), shard, training
        self.workers = feed.workers_for(dataset, ranks_here)
        self._fetching, self._order = _Fetching(dataset), _Order()
        self._batches: Iterable[Any] | None = None
        if self.workers or feed.pin_memory:
            self._batches = DataLoader(
                self._fetching,
                batch_size=None,
                sampler=self._order,
                num_workers=self.workers,
                collate_fn=_as_it_is,
                generator=torch.Generator(),  # so that it draws nothing from training's
                pin_memory=feed.pin_memory,
                prefetch_factor=feed.prefetch if self.workers else None,
                persistent_workers=bool(self.workers),
                worker_init_fn=None if feed.handles_sigterm else _ignore_sigterm,
            )

    @property
    def steps(self) -> int:
        """Return how many steps an epoch of training makes."""
        return steps_per_epoch(self._samples, self._shard)

    def epoch(self, epoch: int, from_step: int = 0) -> Iterator[Batch]:
        """Yield this rank's batches; training data are shuffled by (seed, epoch).

        Those of the training steps before ``from_step`` are not even fetched.

        Raises
        ------
        BadInput
            A sample cannot be read.
        """
        if self._training:
            parts = list(training_parts(self._samples, self._shard, epoch, from_step))
        else:
            parts, epoch = list(evaluation_parts(self._samples, self._shard)), _EVALUATION_EPOCH
        self._order.keys = [
            (part.indices, sample_seeds(self._shard.seed, epoch, part.indices)) for part in parts
        ]
        batches = self._batches
        if batches is None:  # a loader would have nothing to do, and take its time for it
            batches = map(self._fetching.__getitem__, self._order)
        for data, part in zip(batches, parts, strict=True):
            if isinstance(data, _Trouble):
                raise BadInput(data.text)
            yield _batch(data, part)


def _batch(data: Any, part: Part) -> Batch:
    return Batch(data, len(part.indices), part.global_size, part.ends_step)


_Key = tuple[Indices, Seeds]


class _Order(Sampler[_Key]):
    """The batches of the present epoch, each as its samples' numbers and seeds."""

    def __init__(self) -> None:
        self.keys: list[_Key] = []

    def __iter__(self) -> Iterator[_Key]:
        return iter(self.keys)

    def __len__(self) -> int:
        return len(self.keys)


class _Trouble(NamedTuple):
    """What a loader process could not read: torch would bury the text in a traceback."""

    text: str


class _Fetching(torch.utils.data.Dataset[Any]):
    """A dataset as torch's loader asks for it: one item is one batch."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    def __getitem__(self, key: _Key) -> Any:
        try:
            return self._dataset.batch(*key)
        except BadInput as error:
            return _Trouble(str(error))


def _as_it_is(batch: Any) -> Any:
    return batch


@dataclass(frozen=True)
class InMemory:
    """Samples that are tensors in memory, indexed along their first dimension."""

    tensors: tuple[torch.Tensor, ...]
    reads_files: bool = False

    def __len__(self) -> int:
        return len(self.tensors[0])

    def batch(self, indices: Indices, seeds: Seeds) -> tuple[torch.Tensor, ...]:  # noqa: ARG002
        """Return the samples, a tensor of each kind."""
        take = torch.from_numpy(indices)
        return tuple(tensor[take] for tensor in self.tensors)
