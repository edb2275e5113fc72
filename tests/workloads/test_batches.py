"""Which samples a step takes, and which of them a rank gets."""

from typing import ClassVar

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from wattlaw.workloads.data_loading import (
    InMemory,
    Loader,
    evaluation_parts,
    sample_seeds,
    splitmix64,
    steps_per_epoch,
    training_parts,
)
from wattlaw.workloads.workload import Shard

counts = st.integers(1, 300)
worlds = st.integers(1, 9)
locals_ = st.integers(1, 40)
seeds = st.integers(0, 2**31)


def ranks(world: int, local: int, seed: int, fraction: float = 1.0) -> list[Shard]:
    return [Shard(rank, world, local, seed, fraction) for rank in range(world)]


@given(counts, worlds, locals_, seeds, st.integers(0, 50))
def test_every_training_sample_is_seen_once_but_for_a_rest_smaller_than_the_ranks(
    samples, world, local, seed, epoch
):
    shards = ranks(world, local, seed)
    parts = [list(training_parts(samples, shard, epoch)) for shard in shards]
    seen = np.concatenate([p.indices for mine in parts for p in mine] or [np.array([], int)])
    rest = samples % (world * local)
    dropped = rest if rest < world else 0
    assert len(seen) == len(set(seen.tolist())) == samples - dropped
    for update in zip(*parts, strict=True):  # every rank makes the same updates
        sizes = [len(part.indices) for part in update]
        assert 1 <= min(sizes) <= max(sizes) <= local
        assert {part.global_size for part in update} == {sum(sizes)}


@given(counts, worlds, locals_)
def test_every_evaluation_sample_is_seen_exactly_once(samples, world, local):
    seen = [
        index
        for shard in ranks(world, local, 0)
        for part in evaluation_parts(samples, shard)
        for index in part.indices.tolist()
    ]
    assert sorted(seen) == list(range(samples))


@given(counts, seeds, st.floats(0.01, 1.0))
def test_a_fraction_of_the_data_is_the_same_part_in_every_epoch(samples, seed, fraction):
    shard = Shard(0, 1, 16, seed, fraction)
    epochs = [
        {i for part in training_parts(samples, shard, epoch) for i in part.indices.tolist()}
        for epoch in (0, 1, 7)
    ]
    assert epochs[0] == epochs[1] == epochs[2]
    assert len(epochs[0]) == max(1, round(samples * fraction))


def test_epochs_and_seeds_have_orders_of_their_own():
    def order(seed: int, epoch: int) -> list[int]:
        parts = training_parts(100, Shard(0, 1, 10, seed), epoch)
        return [i for part in parts for i in part.indices.tolist()]

    assert order(0, 0) == order(0, 0)
    assert order(0, 0) != order(0, 1)
    assert order(0, 0) != order(1, 0)


@given(counts, worlds, locals_, st.integers(1, 6), st.integers(0, 3))
def test_pieces_of_a_part_are_the_part_and_only_the_last_ends_the_update(
    samples, world, local, pieces, rank
):
    shard = Shard(rank % world, world, local, seed=1)
    cut = Shard(rank % world, world, local, seed=1, micro_batches=pieces)
    whole = list(training_parts(samples, shard, 0))
    found = list(training_parts(samples, cut, 0))
    steps: list[list[int]] = [[]]
    for part in found:
        assert len(part.indices) >= 1
        steps[-1] += part.indices.tolist()
        if part.ends_step:
            steps.append([])
    assert steps == [part.indices.tolist() for part in whole] + [[]]
    assert steps_per_epoch(samples, shard) == steps_per_epoch(samples, cut) == len(whole)


@given(counts, worlds, locals_, st.integers(1, 6), st.integers(0, 50))
def test_an_epoch_resumed_at_a_step_has_the_remaining_batches(samples, world, local, pieces, begin):
    shard = Shard(world - 1, world, local, seed=1, micro_batches=pieces)
    whole = list(training_parts(samples, shard, 3))
    ends = [0, *(place for place, part in enumerate(whole, 1) if part.ends_step)]
    rest = whole[ends[begin] :] if begin < len(ends) else []
    found = list(training_parts(samples, shard, 3, from_step=begin))
    assert [part.indices.tolist() for part in found] == [part.indices.tolist() for part in rest]
    assert [part[1:] for part in found] == [part[1:] for part in rest]


class Counted(InMemory):
    asked: ClassVar[list[list[int]]] = []

    def batch(self, indices, seeds):
        Counted.asked.append(indices.tolist())
        return super().batch(indices, seeds)


def test_updates_before_the_one_that_an_epoch_begins_at_are_not_fetched():
    shard = Shard(0, 1, 4, seed=0, micro_batches=2)
    loader = Loader(Counted((torch.arange(22),)), shard, 0, training=True)
    whole = [(batch.data[0].tolist(), batch.ends_step) for batch in loader.epoch(1)]
    Counted.asked.clear()
    rest = [(batch.data[0].tolist(), batch.ends_step) for batch in loader.epoch(1, 3)]
    assert rest == whole[6:]
    assert [indices for indices, _ in rest] == Counted.asked


@given(seeds, st.integers(0, 1000))
def test_the_seed_of_a_sample_depends_on_seed_epoch_and_sample_only(seed, epoch):
    indices = np.array([5, 0, 123_456])
    found = sample_seeds(seed, epoch, indices)
    assert sample_seeds(seed, epoch, indices[::-1]).tolist() == found[::-1].tolist()
    others = [sample_seeds(seed + 1, epoch, indices), sample_seeds(seed, epoch + 1, indices)]
    assert len({*found.tolist(), *others[0].tolist(), *others[1].tolist()}) == 9


def test_splitmix64_draws_the_published_numbers():
    # From seed 1234567, as on Rosetta Code ("Pseudo-random numbers/Splitmix64").
    assert splitmix64(np.array([1234567], dtype=np.uint64), np.arange(5)).tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
