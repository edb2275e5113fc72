"""The callbacks of real trainers: Lightning and Hugging Face, on tiny networks."""

import json
import os
from itertools import pairwise

import pytest

import paths
from conftest import environment, python
from wattlaw.callbacks.training_callback import rows_of
from wattlaw.store.store import Store

#: Lightning's own class of warnings, as of an srun that is there and not used: xdist would import
#: it, and with it torchvision, where nobody has helped.
pytestmark = pytest.mark.filterwarnings(
    "ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"
)


@pytest.fixture(scope="module")
def trainers():
    """Import the libraries now: each pytest process imports this file, few run its tests."""
    import trainers

    return trainers


def rows(store, *phases: str) -> list[dict[str, object]]:
    epochs = Store(store).pandas("epochs").sort_values("start_ns")
    return epochs[epochs["phase"].isin(phases or set(epochs["phase"]))].to_dict("records")


def test_lightnings_windows_have_the_work_and_the_results_of_the_trainer(tmp_path, trainers):
    callback = trainers.ForLightning("lit", store=tmp_path, warmup_epochs=1, quiet=True)
    trainer = trainers.fit(callback, num_sanity_val_steps=1, accumulate_grad_batches=2)
    assert callback.record.status == "done"
    epochs = rows(tmp_path)
    assert epochs[0]["phase"] == "train"  # without the sanity check
    for before, after in pairwise(epochs):  # none overlaps the next
        end_ns = before["start_ns"] + before["duration_s"] * 1e9
        assert end_ns <= after["start_ns"] + 1e6
    assert all(row["warmup"] == (row["epoch"] == 0) for row in epochs)
    setting = callback.record.spec.setting
    assert (setting.gpus, setting.local_batch, setting.global_batch) == (1, 32, 32)
    assert callback.record.spec.train.gradient_accumulation == 2
    assert callback.record.spec.measure.epochs == 3
    facts = callback.record.facts
    assert (facts.world_size, facts.dataset_samples, facts.metric) == (1, 64, "val_error")
    found = [row for row in rows(tmp_path, "train") if row["steps"] > 0]
    assert [(row["epoch"], row["steps"], row["samples"]) for row in found] == [
        (epoch, 2, 64) for epoch in range(3)
    ]
    evaluations = rows(tmp_path, "evaluate")
    assert [row["samples"] for row in evaluations] == [64] * 3
    last = json.loads(evaluations[-1]["metrics"])
    results = {name: float(value) for name, value in trainer.callback_metrics.items()}
    assert last == results
    assert (evaluations[-1]["loss"], evaluations[-1]["metric"]) == (
        results["val_loss"],
        results["val_error"],
    )


@pytest.mark.parametrize("library", ["lightning", "transformers"])
def test_steps_are_measured_instead_of_epochs(tmp_path, library, trainers):
    options = {"store": tmp_path / "store", "steps": 5, "warmup_steps": 2, "quiet": True}
    if library == "lightning":
        trainers.fit(trainers.ForLightning("x", **options), num_sanity_val_steps=0)
    else:
        trainers.trained(tmp_path, trainers.ForTransformers("x", **options), eval_strategy="epoch")
    epochs = Store(tmp_path / "store").pandas("epochs").sort_values("start_ns")
    assert set(epochs["phase"]) == {"steps"}
    assert epochs["epoch"].isna().all()
    # 4 steps an epoch; the evaluation after it divides the measured ones
    count = 3 if library == "lightning" else 2
    assert list(epochs["steps"]) == [2, 2, *[4] * (count - 1)]
    assert list(epochs["warmup"]) == [True] + [False] * count
    assert list(epochs["samples"]) == [32, 32, *[64] * (count - 1)]
    assert (epochs["step_time_mean_s"] > 0).all()


def test_the_batch_of_a_trainer_is_that_of_its_steps(tmp_path, trainers, monkeypatch):
    options = {"store": tmp_path / "store", "quiet": True, "global_batch": 128}
    for repeat in (0, 1):
        callback = trainers.ForTransformers("hf", **options)
        trainers.trained(tmp_path, callback, batch=16, gradient_accumulation_steps=2)
        assert callback.record.facts.global_batch == 32
        setting = (callback.record.spec.setting.global_batch, callback.record.spec.repeat)
        assert setting == (128, repeat)
    other = trainers.ForTransformers("hf", **options | {"global_batch": 64})
    trainers.trained(tmp_path, other, batch=16)
    assert other.record.spec.repeat == 0  # another batch is no repeat
    callback = trainers.ForLightning("lit", **options)
    trainers.fit(callback, accumulate_grad_batches=2)
    assert callback.record.facts.global_batch == 32
    monkeypatch.setattr("wattlaw.callbacks.lightning.rows_of", lambda batch: 1)
    packed = trainers.ForLightning("lit", store=tmp_path, quiet=True)
    trainers.fit(packed)  # its rows are no samples
    assert packed.record.facts.global_batch is None


def test_a_fit_that_fails_is_a_run_that_failed_with_the_reason(tmp_path, trainers):
    callback = trainers.ForLightning("lit", store=tmp_path, quiet=True)
    with pytest.raises(ValueError, match="sample 7"):
        trainers.fit(callback, fails=True)
    (record,) = Store(tmp_path).records()
    assert (record.status, record.reason) == ("failed", "ValueError: sample 7 is broken")


def test_hugging_face_epochs_are_windows_which_evaluations_interrupt(tmp_path, trainers):
    callback = trainers.ForTransformers("hf", store=tmp_path / "store", quiet=True)
    trainers.trained(tmp_path, callback, eval_strategy="steps", eval_steps=2).evaluate()
    found = [(row["phase"], int(row["epoch"])) for row in rows(tmp_path / "store")]
    assert found.count(("evaluate", 0)) == 2
    assert found[:3] == [("train", 0), ("evaluate", 0), ("train", 0)]
    assert callback.record.status == "done"


def test_hugging_faces_windows_have_the_work_and_the_results_of_the_trainer(tmp_path, trainers):
    callback = trainers.ForTransformers("hf", store=tmp_path / "store", quiet=True)
    trainer = trainers.trained(
        tmp_path, callback, eval_strategy="epoch", gradient_accumulation_steps=3,
        logging_strategy="epoch",
        results=lambda p: {"error": float(abs(p.predictions - p.label_ids).mean())},
    )  # fmt: skip
    setting, facts = callback.record.spec.setting, callback.record.facts
    assert (setting.gpus, setting.local_batch, setting.global_batch) == (1, 48, 48)
    assert callback.record.spec.train.gradient_accumulation == 3
    assert callback.record.spec.measure.epochs == 2
    assert (facts.world_size, facts.dataset_samples, facts.metric) == (1, 64, "error")
    logged = trainer.state.log_history
    training = rows(tmp_path / "store", "train")  # 3 batches, then the last one alone
    assert [(row["steps"], row["samples"]) for row in training] == [(2, 64)] * 2
    assert sum(row["steps"] for row in training) == trainer.state.global_step
    evaluations = rows(tmp_path / "store", "evaluate")
    for row, entry in zip(evaluations, [e for e in logged if "eval_loss" in e], strict=True):
        assert (row["samples"], row["loss"]) == (64, entry["eval_loss"])
        assert row["metric"] == json.loads(row["metrics"])["error"] == entry["eval_error"]


def test_the_samples_of_a_batch_are_the_rows_of_its_first_tensor():
    from torch import tensor, zeros

    assert rows_of(zeros(3, 2)) == 3
    assert rows_of([zeros(4, 2), zeros(4)]) == 4
    assert rows_of({"text": ["a"], "labels": zeros(5)}) == 5
    assert rows_of((["a", "b"],)) is None
    assert rows_of(7) is None
    assert rows_of(tensor(1.0)) is None


TWO_WORKERS = {
    "lightning": (
        "callback = trainers.ForLightning('x', store=sys.argv[1], quiet=True)\n"
        "trainers.fit(callback, num_sanity_val_steps=0, devices=2, strategy='ddp')\n"
    ),
    "transformers": (
        "callback = trainers.ForTransformers('x', store=sys.argv[1], quiet=True)\n"
        "trainers.trained(Path(sys.argv[1]).parent, callback)\n"
        # The Trainer leaves the group open, and PyTorch then aborts a process at its exit at times.
        "torch.distributed.destroy_process_group()\n"
    ),
}


@pytest.mark.parametrize("library", TWO_WORKERS)
def test_two_workers_are_one_run_with_the_work_of_both(tmp_path, library):
    script = tmp_path / "train.py"
    script.write_text(
        f"import sys, torch, trainers\nfrom pathlib import Path\n{TWO_WORKERS[library]}"
    )
    path = os.pathsep.join([str(paths.SUPPORT), environment()["PYTHONPATH"]])
    own = environment() | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    done = python(paths.SCRIPTS / "start_ranks.py", 2, script, tmp_path / "store", env=own)
    assert done.returncode == 0, done.stderr
    (record,) = Store(tmp_path / "store").records()
    setting = record.spec.setting
    assert (setting.gpus, setting.local_batch, setting.global_batch) == (2, 16, 32)
    assert (record.facts.world_size, record.facts.dataset_samples) == (2, 64)
    found = [row for row in rows(tmp_path / "store", "train") if row["steps"] > 0]
    assert [(row["epoch"], row["steps"], row["samples"]) for row in found] == [
        (epoch, 2, 64) for epoch in range(3 if library == "lightning" else 2)
    ]
