"""The parts of training steps: waiting for samples, communication, waiting for the slowest rank."""

import multiprocessing
import os
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from ranks import spec_of
from wattlaw.running.training.environment import RENDEZVOUS_FILE
from wattlaw.running.training.loop import Training
from wattlaw.running.training.ranks import process_group
from wattlaw.workloads.data_loading import InMemory

LOADING_S, SLOWER_S, STEPS = 0.01, 0.1, 8


class _SlowData(InMemory):
    def batch(self, indices, seeds):
        time.sleep(LOADING_S)
        return super().batch(indices, seeds)


class _Workload:
    def training_data(self):
        return _SlowData((torch.zeros(STEPS * 8, 4),))

    def optimizer(self, model, global_batch, fused):
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def schedule(self, optimizer, global_batch, epochs):
        class Constant:
            def before_step(self, epoch):
                """Keep the learning rate."""

        return Constant()

    def loss(self, model, data):
        if os.environ["RANK"] == "1":
            time.sleep(SLOWER_S)
        return model(data[0]).square().mean()


def _train(rank: int, world: int, folder: Path) -> None:
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world), RENDEZVOUS_FILE: str(folder / "rendezvous"),
    }  # fmt: skip
    torch.set_num_threads(1)
    with process_group() as ranks:
        spec = spec_of("made", {}, gpus=world, global_batch=8, evaluate=False)
        training = Training(_Workload(), nn.Linear(4, 4), spec, 0, ranks)
        window, _ = training.train_epoch(0)
        (folder / f"{rank}.txt").write_text(repr(window))


@pytest.mark.parametrize("world", [1, 2])
def test_each_wait_is_measured_and_a_slow_rank_is_not_communication(world, tmp_path):
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_train, args=(r, world, tmp_path)) for r in range(world)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    first, *others = [eval((tmp_path / f"{rank}.txt").read_text()) for rank in range(world)]  # noqa: S307
    assert first["steps"] == STEPS
    # On a busy machine every wait may be longer.
    assert STEPS * LOADING_S <= first["data_wait_s"] < first["duration_s"]
    if world == 1:
        assert "communication_s" not in first
        return
    # Half of the ranks wait for the other half.
    assert 0.5 * STEPS * SLOWER_S / 2 < first["rank_wait_s"] < first["duration_s"]
    # The slower rank does not communicate while it sleeps.
    busy_s = STEPS * (SLOWER_S + LOADING_S)
    assert 0 < first["communication_s"] < first["duration_s"] - busy_s
    for name in ("data_wait_s", "communication_s", "rank_wait_s"):
        assert others[0][name] == first[name]


def test_only_full_batches_let_cudnn_search_for_its_algorithms(tmp_path, monkeypatch):
    """The rest at the end of an epoch may first come within the measured steps."""
    flags = {}

    class Uneven(_Workload):
        def training_data(self):
            return _SlowData((torch.zeros(8 + 3, 4),))

        def loss(self, model, data):
            flags[len(data[0])] = torch.backends.cudnn.benchmark
            return super().loss(model, data)

    monkeypatch.setitem(globals(), "_Workload", Uneven)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    _train(0, 1, tmp_path)
    assert flags == {8: True, 3: False}
