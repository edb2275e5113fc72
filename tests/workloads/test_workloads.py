"""Every workload in the training loop: it learns, ranks agree, and checkpoints resume."""

import os
import signal
import time

import pytest

from ranks import losses, spec_of, start, trained, windows_of
from reduced import WORKLOADS
from wattlaw.store.run_folder import RunFolder
from wattlaw.study.model import RunSpec
from wattlaw.workloads import catalogue

NAMES = sorted(entry.name for entry in catalogue.entries())
EPOCHS = 3
#: fp32 sums in another order: a relative step of 1e-7 grows with the steps that follow it.
TOLERANCE = 2e-3


def compared_epochs(name: str) -> int:
    """Return how many epochs are compared: all where the rate depends on their number."""
    return EPOCHS if name == "fourcastnet" else 2


def spec_alone(name: str, *, calm: bool = False, epochs: int = EPOCHS, **train: object) -> RunSpec:
    reduced = WORKLOADS[name]
    options = reduced.options | (reduced.calm if calm else {})
    train |= {"gradient_accumulation": 2 if reduced.has_batch_norm else 1}
    return spec_of(name, options, global_batch=reduced.global_batch, epochs=epochs, **train)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    kept: dict[tuple[str, bool], list] = {}

    def train(name: str, *, calm: bool = False) -> list:
        calm = calm and bool(WORKLOADS[name].calm)
        if (name, calm) not in kept:
            folder = tmp_path_factory.mktemp(name) / "run"
            epochs = compared_epochs(name) if calm else EPOCHS
            kept[name, calm] = trained(spec_alone(name, calm=calm, epochs=epochs), folder)
        return kept[name, calm]

    return train


@pytest.mark.parametrize("name", NAMES)
def test_the_loss_falls(name, alone):
    found = losses(alone(name))
    assert len(found) == EPOCHS
    assert found[-1] < 0.97 * found[0], found


@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_follow_the_losses_of_one_at_the_same_global_batch(name, alone, tmp_path):
    """Exactly the same function but for the order of sums, without dropout.

    Batch normalisation takes its statistics over what one rank computes at once, so for ResNet50
    and InceptionV3 two ranks equal one rank that computes its batch in two pieces, not in one.
    """
    reduced, one = WORKLOADS[name], alone(name, calm=True)
    options, epochs = reduced.options | reduced.calm, compared_epochs(name)
    spec = spec_of(name, options, gpus=2, global_batch=reduced.global_batch, epochs=epochs)
    found = trained(spec, tmp_path / "run")
    assert losses(found) == pytest.approx(losses(one)[:epochs], rel=TOLERANCE)
    if not reduced.has_batch_norm:  # running statistics are averaged over ranks, not over pieces
        theirs = losses(one, "evaluate")[:epochs]
        assert losses(found, "evaluate") == pytest.approx(theirs, rel=TOLERANCE)
    training = [window for window in found if window["phase"] == "train"]
    assert {window["samples"] for window in training} == {reduced.samples}


@pytest.mark.parametrize(
    "name",
    [
        "bert-base",  # the state of AdamW
        "digits-cnn",  # momentum
        "fourcastnet",  # Adam, and a rate that depends on the number of epochs
        "resnet50",  # running statistics
        "schnet",  # data of loader processes
    ],
)
def test_a_killed_run_resumes_from_its_checkpoint_with_the_same_result(name, alone, tmp_path):
    """The same to the last digit as a run that was never stopped and wrote no checkpoint."""
    epochs, folder = compared_epochs(name), tmp_path / "killed"
    spec = spec_alone(name, epochs=epochs, checkpoint_every=1)
    ranks = start(spec, folder)
    checkpoint, end_s = RunFolder(folder).checkpoint_path, time.monotonic() + 60
    while not checkpoint.exists() and time.monotonic() < end_s:
        time.sleep(0.001)
    for rank in ranks:
        os.kill(rank.pid, signal.SIGKILL)
        rank.join()
    before = windows_of(folder)
    after = trained(spec, folder, attempt=2)
    first = after[0]["epoch"] if after else epochs
    assert first >= 1
    joined = [window for window in before if window["epoch"] < first] + after
    for phase in ("train", "evaluate"):
        assert losses(joined, phase) == losses(alone(name), phase)[:epochs]


def test_pieces_of_a_local_batch_make_the_same_updates(tmp_path):
    reduced = WORKLOADS["digits-cnn"]

    def with_pieces(pieces: int) -> list[float]:
        spec = spec_of(
            "digits-cnn", reduced.options, gpus=2, global_batch=250, gradient_accumulation=pieces
        )
        return losses(trained(spec, tmp_path / str(pieces)))

    assert with_pieces(3) == pytest.approx(with_pieces(1), rel=1e-4)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_learns_as_single_precision_does(precision, alone, tmp_path):
    spec, expected = spec_alone("digits-cnn", epochs=2, precision=precision), alone("digits-cnn")
    found = losses(trained(spec, tmp_path / "run"))
    assert found == pytest.approx(losses(expected)[:2], rel=0.05)
    assert found != losses(expected)[:2]


def test_options_of_the_loop_change_speed_not_results(alone, tmp_path):
    options = {"channels_last": True, "fused_optimizer": True, "bucket_mb": 0.01}
    spec = spec_alone("digits-cnn", gpus=2, epochs=2, **options)
    found = trained(spec, tmp_path / "run")
    assert losses(found) == pytest.approx(losses(alone("digits-cnn"))[:2], rel=TOLERANCE)


def test_loader_processes_bring_the_same_batches(alone, tmp_path):
    spec = spec_alone("bert-base", epochs=2, loader_workers=2, prefetch=3)
    assert losses(trained(spec, tmp_path / "run")) == losses(alone("bert-base"))[:2]


def test_a_compiled_model_follows_the_same_losses(tmp_path):
    def with_compiler(compiled: bool) -> list[float]:
        # Four whole steps: another shape is compiled anew.
        more = {"global_batch": 256, "fraction": 1024 / 1437, "compile": compiled}
        spec = spec_of("digits-cnn", {"width": 8}, **more)
        return losses(trained(spec, tmp_path / str(compiled)))

    assert with_compiler(True) == pytest.approx(with_compiler(False), rel=TOLERANCE)


def test_a_rank_without_a_single_sample_is_refused(tmp_path):
    spec = spec_of("digits-cnn", {}, gpus=2, global_batch=64, fraction=0.0001)
    with pytest.raises(AssertionError, match="of 1437 samples with 2 copies"):
        trained(spec, tmp_path)
