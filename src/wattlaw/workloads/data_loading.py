"""Loads the batches of a rank, in its own process or in loader processes."""

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

#: The most loader processes of a rank by default.
_MOST_WORKERS = 8
#: The epoch of evaluation seeds: a sample has the same seed in every evaluation.
_EVALUATION_EPOCH = 2**31


@dataclass(frozen=True)
class LoaderOptions:
    """How batches are loaded."""

    workers: int | None = None  # loader processes of a rank; None: by dataset and cores
    prefetch: int = 2  # batches that each loader process prepares in advance
    pin_memory: bool = False  # page-locked memory, for copies in parallel with GPU work
    handles_sigterm: bool = (
        True  # whether a SIGTERM to the whole process tree ends loader processes
    )

    def workers_for(self, dataset: Dataset, ranks_here: int) -> int:
        """Return the number of loader processes of a rank on a host with ``ranks_here`` ranks."""
        if self.workers is not None:
            return self.workers
        spare = processes.cores() // ranks_here - 1
        return max(0, min(_MOST_WORKERS, spare)) if dataset.reads_files else 0


def _ignore_sigterm(_: int) -> None:
    """Ignore SIGTERM in a loader process; its rank decides when it ends."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


class Loader:
    """Loads the batches of one rank; every rank has the same number of steps."""

    def __init__(
        self,
        dataset: Dataset,
        shard: Shard,
        options: LoaderOptions,
        *,
        training: bool,
        ranks_here: int = 1,
    ) -> None:
        self._samples, self._shard, self._training = len(dataset), shard, training
        self.workers = options.workers_for(dataset, ranks_here)
        self._fetcher, self._order = _Fetcher(dataset), _Order()
        self._batches: Iterable[Any] | None = None
        if self.workers or options.pin_memory:
            self._batches = DataLoader(
                self._fetcher,
                batch_size=None,
                sampler=self._order,
                num_workers=self.workers,
                collate_fn=_unchanged,
                generator=torch.Generator(),  # so that it does not use training's generator
                pin_memory=options.pin_memory,
                prefetch_factor=options.prefetch if self.workers else None,
                persistent_workers=bool(self.workers),
                worker_init_fn=None if options.handles_sigterm else _ignore_sigterm,
            )

    @property
    def steps(self) -> int:
        """Return the number of steps of a training epoch."""
        return steps_per_epoch(self._samples, self._shard)

    def epoch(self, epoch: int, from_step: int = 0) -> Iterator[Batch]:
        """Yield the batches of this rank; training data are shuffled by (seed, epoch).

        Batches of training steps before ``from_step`` are skipped without loading them.

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
        if batches is None:  # a DataLoader would only add overhead
            batches = map(self._fetcher.__getitem__, self._order)
        for data, part in zip(batches, parts, strict=True):
            if isinstance(data, _ReadError):
                raise BadInput(data.text)
            yield _batch(data, part)


def _batch(data: Any, part: Part) -> Batch:
    return Batch(data, len(part.indices), part.global_size, part.ends_step)


_Key = tuple[Indices, Seeds]


class _Order(Sampler[_Key]):
    """The batches of the current epoch, each as its samples' indices and seeds."""

    def __init__(self) -> None:
        self.keys: list[_Key] = []

    def __iter__(self) -> Iterator[_Key]:
        return iter(self.keys)

    def __len__(self) -> int:
        return len(self.keys)


class _ReadError(NamedTuple):
    """An error of a loader process as a value: torch would hide an exception in a traceback."""

    text: str


class _Fetcher(torch.utils.data.Dataset[Any]):
    """A dataset for torch's DataLoader, in which one item is one batch."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    def __getitem__(self, key: _Key) -> Any:
        try:
            return self._dataset.batch(*key)
        except BadInput as error:
            return _ReadError(str(error))


def _unchanged(batch: Any) -> Any:
    return batch


@dataclass(frozen=True)
class InMemory:
    """Samples as tensors in memory, indexed along their first dimension."""

    tensors: tuple[torch.Tensor, ...]
    reads_files: bool = False

    def __len__(self) -> int:
        return len(self.tensors[0])

    def batch(self, indices: Indices, seeds: Seeds) -> tuple[torch.Tensor, ...]:  # noqa: ARG002
        """Return the samples as one tensor for each of ``tensors``."""
        take = torch.from_numpy(indices)
        return tuple(tensor[take] for tensor in self.tensors)
