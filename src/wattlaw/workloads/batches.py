"""Assigns samples to steps and ranks."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wattlaw.workloads.workload import Indices, Seeds, Shard

#: The step between SplitMix64's states: 2^64 over the golden ratio.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Part(NamedTuple):
    """The samples of a rank in one step, or of a micro-batch, and the size of the step."""

    indices: Indices
    global_size: int
    ends_step: bool = True


def training_parts(samples: int, shard: Shard, epoch: int, from_step: int = 0) -> Iterator[Part]:
    """Yield a rank's parts of the steps of one training epoch, beginning at ``from_step``.

    The order depends only on seed and epoch, and a step takes the next ``global_batch`` samples for
    any number of ranks: one and several ranks train on the same steps. The last step has the
    remaining samples, split as evenly as possible. It is dropped if it has fewer samples than
    ranks. ``fraction`` keeps the first samples of an order that depends only on the seed, so that
    every epoch has the same samples. ``micro_batches`` splits a rank's part, at most to one sample.
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
        pieces = np.array_split(local, min(shard.micro_batches, len(local)))
        for piece in pieces[:-1]:
            yield Part(piece, len(step), ends_step=False)
        yield Part(pieces[-1], len(step))


def steps_per_epoch(samples: int, shard: Shard) -> int:
    """Return the number of steps that ``training_parts`` yields for one epoch."""
    full_steps, rest = divmod(max(1, round(samples * shard.fraction)), shard.global_batch)
    return full_steps + (rest >= shard.world)


def evaluation_parts(samples: int, shard: Shard) -> Iterator[Part]:
    """Yield a rank's parts of the evaluation samples: each sample once over all ranks."""
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
