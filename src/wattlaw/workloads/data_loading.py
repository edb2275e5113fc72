"""Assigns samples to steps and ranks, and loads the batches of a rank."""

import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader

from wattlaw.common import processes
from wattlaw.common.errors import BadInput
from wattlaw.workloads.workload import Batch, Dataset, Indices, Seeds, Shard

#: The most loader processes of a rank by default.
_MOST_WORKERS = 8
#: The epoch of evaluation seeds: a sample has the same seed in every evaluation.
_EVALUATION_EPOCH = 2**31
#: The step between SplitMix64's states: 2^64 over the golden ratio.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Part(NamedTuple):
    indices: Indices
    global_size: int
    ends_step: bool = True


def training_parts(samples: int, shard: Shard, epoch: int, from_step: int = 0) -> Iterator[Part]:
    """Yield a rank's parts of the steps of one training epoch, beginning at ``from_step``.

    The order depends only on seed and epoch, and a step takes the next ``global_batch`` samples for
    any number of ranks: one and several ranks train on the same steps. The last step has the
    remaining samples; it is dropped if it has fewer samples than ranks. ``fraction`` keeps the
    first samples of an order that depends only on the seed, so that every epoch has the same
    samples.
    """
    kept = np.random.default_rng((shard.seed, 0)).permutation(samples)
    kept = kept[: max(1, round(samples * shard.fraction))]
    order = np.random.default_rng((shard.seed, 1, epoch)).permutation(kept)
    size = shard.global_batch
    for start in range(from_step * size, len(order), size):
        step = order[start : start + size]
        if len(step) < shard.world:
            continue
        local = np.array_split(step, shard.world)[shard.rank]
        # As many on every rank: sharded models communicate in each.
        pieces = np.array_split(local, min(shard.micro_batches, len(step) // shard.world))
        for number, piece in enumerate(pieces, 1):
            yield Part(piece, len(step), ends_step=number == len(pieces))


def steps_per_epoch(samples: int, shard: Shard) -> int:
    full_steps, rest = divmod(max(1, round(samples * shard.fraction)), shard.global_batch)
    return full_steps + (rest >= shard.world)


def evaluation_parts(samples: int, shard: Shard) -> Iterator[Part]:
    local = np.array_split(np.arange(samples), shard.world)[shard.rank]
    size = -(-shard.local_batch // shard.micro_batches)
    for start in range(0, len(local), size):
        part = local[start : start + size]
        yield Part(part, len(part))


def sample_seeds(seed: int, epoch: int, indices: Indices) -> Seeds:
    """Return a seed for each sample, from seed, epoch and sample; splitmix64 mixes them."""
    start: Seeds = np.random.SeedSequence((seed, 2, epoch)).generate_state(1).astype(np.uint64)
    return splitmix64(start, indices)


def splitmix64(seeds: Seeds, positions: npt.NDArray[np.integer[Any]]) -> Seeds:
    """Return the numbers of the generator SplitMix64 for seeds and positions from 0.

    Steele, Lea and Flood 2014 (doi 10.1145/2660193.2660195): a number depends on seed and position
    only, so that all are computed at once, without a generator per sample. The arrays broadcast.
    """
    with np.errstate(over="ignore"):
        state = seeds + (positions.astype(np.uint64) + np.uint64(1)) * _GOLDEN
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed: Seeds = state ^ (state >> np.uint64(31))
    return mixed


def workers_for(dataset: Dataset, sharing: int, *, on_gpu: bool) -> int:
    if not dataset.reads_files:
        return 0
    # A rank that trains on a GPU mostly waits for it, so that one process always helps it.
    return min(_MOST_WORKERS, max(int(on_gpu), processes.cores() // sharing - 1))


class Loader:
    """Loads the batches of one rank; every rank has the same number of steps.

    ``workers`` are its loader processes, each of which prepares ``prefetch`` batches in advance.
    SIGTERM ends them unless ``handles_sigterm`` is False.
    """

    def __init__(
        self,
        dataset: Dataset,
        shard: Shard,
        workers: int,
        *,
        training: bool,
        prefetch: int = 2,
        pin_memory: bool = False,
        handles_sigterm: bool = True,
    ) -> None:
        self._samples, self._shard, self._training = len(dataset), shard, training
        self.workers, self.steps = workers, steps_per_epoch(len(dataset), shard)
        self._fetcher = _Fetcher(dataset)
        self._keys: list[_Key] = []  # of the batches of the present epoch
        self._batches: Iterable[Any] | None = None
        if workers or pin_memory:
            self._batches = DataLoader(
                self._fetcher,
                batch_size=None,
                sampler=self._keys,  # any iterable of keys
                num_workers=workers,
                collate_fn=_unchanged,
                generator=torch.Generator(),  # so that it does not use training's generator
                pin_memory=pin_memory,
                prefetch_factor=prefetch if workers else None,
                persistent_workers=bool(workers),
                worker_init_fn=None if handles_sigterm else _ignore_sigterm,
            )

    def epoch(self, epoch: int, from_step: int = 0) -> Iterator[Batch]:
        """Batches of training steps before ``from_step`` are skipped without loading them."""
        if self._training:
            parts = list(training_parts(self._samples, self._shard, epoch, from_step))
        else:
            parts, epoch = list(evaluation_parts(self._samples, self._shard)), _EVALUATION_EPOCH
        seed = self._shard.seed
        self._keys[:] = [(part.indices, sample_seeds(seed, epoch, part.indices)) for part in parts]
        batches = self._batches
        if batches is None:  # a DataLoader would only add overhead
            batches = map(self._fetcher.__getitem__, self._keys)
        for data, part in zip(batches, parts, strict=True):
            if isinstance(data, _ReadError):
                raise BadInput(data.text)
            yield Batch(data, len(part.indices), part.global_size, part.ends_step)


_Key = tuple[Indices, Seeds]  # of the samples of a batch


class _ReadError(NamedTuple):
    """An error of a loader process as a value: torch would hide an exception in a traceback."""

    text: str


class _Fetcher(torch.utils.data.Dataset[Any]):
    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    def __getitem__(self, key: _Key) -> Any:
        try:
            return self._dataset.batch(*key)
        except BadInput as error:
            return _ReadError(str(error))


def _ignore_sigterm(_: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _unchanged(batch: Any) -> Any:
    return batch


@dataclass(frozen=True)
class InMemory:
    tensors: tuple[torch.Tensor, ...]
    reads_files: bool = False

    def __len__(self) -> int:
        return len(self.tensors[0])

    def batch(self, indices: Indices, seeds: Seeds) -> tuple[torch.Tensor, ...]:  # noqa: ARG002
        take = torch.from_numpy(indices)
        return tuple(tensor[take] for tensor in self.tensors)
