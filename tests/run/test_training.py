"""The training loop under real torch.distributed: what it computes, writes and waits for."""

import json
import multiprocessing
import os
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from conftest import parsed
from launchers import execute
from ranks import spec_of
from wattlaw.running.local import LocalLauncher
from wattlaw.running.training.environment import RENDEZVOUS_FILE
from wattlaw.running.training.loop import Training
from wattlaw.running.training.ranks import process_group
from wattlaw.store.store import Store
from wattlaw.study.model import Study, Train
from wattlaw.workloads.data_loading import InMemory

TRAIN, TEST = 1437, 360


def run_here(study: Study, path: Path) -> Store:
    """Run a study in this process's campaign, without the search for GPUs."""
    outcome = execute(study, path, LocalLauncher(study.launch, gpus=[], board_of={}))
    assert (outcome.failed, outcome.left) == (0, 0), Store(path).records()
    return Store(path)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Train at one global batch on one and three workers: 1437 = 14 x 96 + 93 samples.

    ``test_workloads.py`` compares one and two.
    """
    study = parsed(
        workloads=[{"name": "digits-cnn", "options": {"width": 8}}],
        sweeps=[{"gpus": [1, 3], "global_batch": [96]}],
        measure={"epochs": 2, "warmup_epochs": 1, "sample_hz": 20, "assume_cpu_w": 15},
        launch={"gpus_per_node": 4, "max_parallel": 2, "threads_per_worker": 1},
    )
    return run_here(study, tmp_path_factory.mktemp("training") / "store")


@pytest.fixture(scope="module")
def windows(store):
    return store.pandas("epochs").merge(store.pandas("runs")[["run_id", "gpus"]], on="run_id")


def test_one_and_three_workers_have_the_same_losses_at_one_global_batch(windows):
    losses = windows.pivot_table(index=["epoch", "phase"], columns="gpus", values="loss")
    assert len(losses) == 4
    assert losses[3].to_numpy() == pytest.approx(losses[1].to_numpy(), rel=2e-4)


def test_every_window_counts_the_samples_and_updates_it_had(windows):
    training, evaluation = (windows[windows.phase == p] for p in ("train", "evaluate"))
    assert set(training.samples) == {TRAIN}
    assert set(training.steps) == {15}
    assert set(evaluation.samples) == {TEST}
    assert evaluation.steps.isna().all()
    assert training.metric.isna().all()
    assert windows.groupby("gpus").size().to_list() == [4, 4]
    assert set(windows[windows.warmup].epoch) == {0}
    assert set(windows[~windows.warmup].epoch) == {1}
    assert not windows.interrupted.any()
    for row in evaluation.itertuples():
        assert json.loads(row.metrics) == {"loss": row.loss, "accuracy": row.metric}
    for _, run in windows.groupby("gpus"):
        ordered = run.sort_values("start_ns")
        ends = ordered.start_ns + ordered.duration_s * 1e9
        assert (ordered.start_ns.to_numpy()[1:] >= ends.to_numpy()[:-1] - 1e6).all()
        assert ordered.phase.to_list() == ["train", "evaluate"] * 2
    assert set(windows.from_step) == {0}


def test_telemetry_covers_the_run_from_before_its_first_window_to_after_its_last(store, windows):
    telemetry = store.pandas("telemetry")
    for run_id, run in windows.groupby("run_id"):
        mine = telemetry[telemetry.run_id == run_id]
        assert mine.t_ns.min() < run.start_ns.min()
        assert mine.t_ns.max() > (run.start_ns + run.duration_s * 1e9).max()
        assert mine.t_ns.is_monotonic_increasing


def test_the_operations_of_a_sample_are_those_counted_by_hand(store):
    """Two per multiplication and addition; backward as much for weights, and as much for inputs.

    3 x 3 convolutions on 8 x 8 pixels with 1 -> 8 and 8 -> 16 channels, then dense layers
    256 -> 16 -> 10 behind 2 x 2 pooling. The gradient of the pictures is not needed.
    """
    first, second = (9 * before * after * 8 * 8 for before, after in ((1, 8), (8, 16)))
    dense = 16 * 4 * 4 * 16 + 16 * 10
    by_hand = 2 * (2 * first + 3 * second + 3 * dense)
    assert by_hand == 486_336
    assert set(store.pandas("runs").flops_per_sample) == {by_hand}


def test_the_record_has_hardware_and_software(store):
    runs = store.pandas("runs")
    assert (runs.gradient_bytes == 4 * runs.parameters).all()
    assert set(runs.loader_workers) == {0}  # nothing is read from files
    assert [json.loads(text) for text in runs.train] == [Train().model_dump()] * 2
    for record in store.records():
        assert record.status == "done"
        assert record.attempts == 1
        assert record.facts.parameters == 5530
        assert record.facts.threads_per_worker == 1
        assert "torch" in record.facts.software
        assert [device.id for device in record.samplers[0].devices] == ["host"]
        assert record.samplers[0].cpu_s > 0
        folder = store.folder(record.run_id).path
        assert not (folder / "live").exists()
        assert (folder / "log.txt").exists()


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
        window, _ = Training(_Workload(), nn.Linear(4, 4), spec, 0, ranks).train_epoch(0)
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
