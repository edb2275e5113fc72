"""Which samples a step takes, and which of them a rank gets."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wattlaw.workloads.workload import Indices, Seeds, Shard

#: The step between SplitMix64's states: 2^64 over the golden ratio.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Part(NamedTuple):
    """A rank's samples of one step, or a piece of them, and how many the step has in all."""

    indices: Indices
    global_size: int
    ends_step: bool = True


def training_parts(samples: int, shard: Shard, epoch: int, from_step: int = 0) -> Iterator[Part]:
    """Yield a rank's parts of the steps of one training epoch, from one of them on.

    The order depends on seed and epoch only, and a step takes the next ``global_batch``
    samples whatever the number of ranks: so one and several ranks train on the same steps.
    The last step takes what is left, split as evenly as it goes; it is dropped only when it
    has fewer samples than there are ranks. ``fraction`` keeps the first part of an order that
    depends on the seed only, so that every epoch has the same samples. With ``micro_batches`` a
    rank's part comes in so many pieces, or one per sample where it has fewer.
    """
    kept = np.random.default_rng((shard.seed, 0)).permutation(samples)
    kept = kept[: max(1, round(samples * shard.fraction))]
    order = np.random.default_rng((shard.seed, 1, epoch)).permutation(kept)
    size = shard.global_batch
    for start in range(from_step * size, len(order), size):
        step = order[start : start + size]
        if len(step) < shard.world:
            continue
        mine = np.array_split(step, shard.world)[shard.rank]
        pieces = np.array_split(mine, min(shard.micro_batches, len(mine)))
        for piece in pieces[:-1]:
            yield Part(piece, len(step), ends_step=False)
        yield Part(pieces[-1], len(step))


def steps_per_epoch(samples: int, shard: Shard) -> int:
    """Return how many steps ``training_parts`` makes of one epoch."""
    whole, rest = divmod(max(1, round(samples * shard.fraction)), shard.global_batch)
    return whole + (rest >= shard.world)


def evaluation_parts(samples: int, shard: Shard) -> Iterator[Part]:
    """Yield a rank's parts of the evaluation samples: each sample once over all ranks."""
    mine = np.array_split(np.arange(samples), shard.world)[shard.rank]
    size = -(-shard.local_batch // shard.micro_batches)
    for start in range(0, len(mine), size):
        part = mine[start : start + size]
        yield Part(part, len(part))


def sample_seeds(seed: int, epoch: int, indices: Indices) -> Seeds:
    """Return a seed for each sample, from seed, epoch and sample; splitmix64 mixes them."""
    start: Seeds = np.random.SeedSequence((seed, 2, epoch)).generate_state(1).astype(np.uint64)
    return splitmix64(start, indices)


def splitmix64(seeds: Seeds, places: npt.NDArray[np.integer[Any]]) -> Seeds:
    """Return what the generator SplitMix64 draws from seeds at places counted from 0.

    Steele, Lea and Flood 2014 (doi 10.1145/2660193.2660195): a number is a mix of seed and place,
    so that all are had at once and no generator is made per sample. The arrays are broadcast.
    """
    with np.errstate(over="ignore"):
        state = seeds + (places.astype(np.uint64) + np.uint64(1)) * _GOLDEN
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed: Seeds = state ^ (state >> np.uint64(31))
    return mixed
