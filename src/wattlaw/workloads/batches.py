"""Which samples an update takes, and which of them a rank gets."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wattlaw.workloads.workload import Shard

Indices = npt.NDArray[np.int64]


class Part(NamedTuple):
    """A rank's samples of one update, and how many the update has on all ranks."""

    indices: Indices
    global_size: int


def training_parts(samples: int, shard: Shard, epoch: int) -> Iterator[Part]:
    """Yield a rank's parts of the updates of one training epoch.

    The order depends on seed and epoch only, and an update takes the next ``global_batch``
    samples whatever the number of ranks: so one and several ranks train on the same updates.
    The last update takes what is left, split as evenly as it goes; it is dropped only when it
    has fewer samples than there are ranks. ``fraction`` keeps the first part of an order that
    depends on the seed only, so that every epoch has the same samples.
    """
    kept = np.random.default_rng((shard.seed, 0)).permutation(samples)
    kept = kept[: max(1, round(samples * shard.fraction))]
    order = np.random.default_rng((shard.seed, 1, epoch)).permutation(kept)
    for start in range(0, len(order), shard.global_batch):
        update = order[start : start + shard.global_batch]
        if len(update) >= shard.world:
            yield Part(np.array_split(update, shard.world)[shard.rank], len(update))


def evaluation_parts(samples: int, shard: Shard) -> Iterator[Part]:
    """Yield a rank's parts of the evaluation samples: each sample once over all ranks."""
    mine = np.array_split(np.arange(samples), shard.world)[shard.rank]
    for start in range(0, len(mine), shard.local_batch):
        part = mine[start : start + shard.local_batch]
        yield Part(part, len(part))
