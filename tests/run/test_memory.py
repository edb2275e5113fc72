"""Runs that do not fit into the memory of their boards are known before they start."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import profiler

from conftest import study_in
from wattlaw.api.studies import load_study, run
from wattlaw.cli.main import main
from wattlaw.running.boards import named_board
from wattlaw.store.store import Store
from wattlaw.study.model import WorkloadSpec
from wattlaw.workloads import catalogue
from wattlaw_simulator.profiling.profiler import measure_profile

SMALL_RESNET = {"blocks": [1, 1, 1, 1], "image_size": 64, "classes": 10, "train_samples": 32}


def write(folder: Path, local_batch: int = 16, **changes: Any) -> Path:
    """Write a study of one run of FourCastNet, whose activations take 10 GB per sample."""
    study = {
        "name": "large",
        "workloads": [{"name": "fourcastnet"}],
        "sweeps": [{"gpus": [1], "local_batch": [local_batch]}],
        "measure": {"epochs": 1, "warmup_epochs": 0},
    }
    return study_in(folder, study | changes)


def kept_bytes(spec: WorkloadSpec, samples: int) -> float:
    """Return what torch's allocator keeps after a forward pass: nothing of ours counts it."""
    workload = catalogue.build(spec)
    model, numbers = workload.model().train(), np.arange(samples)
    data = workload.training_data().batch(numbers, numbers.astype(np.uint64))
    with profiler.profile(activities=[profiler.ProfilerActivity.CPU], profile_memory=True) as seen:
        loss = workload.loss(model, data)
    assert loss.requires_grad
    return sum(event.self_cpu_memory_usage for event in seen.key_averages())


@pytest.mark.parametrize("name", ["digits-cnn", "resnet50"])
def test_activations_are_what_the_allocator_keeps_after_a_forward_pass(name):
    spec = WorkloadSpec(name=name, options=SMALL_RESNET if name == "resnet50" else {})
    per_sample = (kept_bytes(spec, 16) - kept_bytes(spec, 8)) / 8
    image_bytes = 4 * (3 * 64 * 64 if name == "resnet50" else 64)  # allocated before the pass
    counted = measure_profile(spec).activation_bytes_per_sample
    assert counted == pytest.approx(per_sample + image_bytes, rel=0.02)


def test_activations_of_resnet50_are_twice_the_published_outputs_of_its_convolutions():
    """11.1 million numbers: Radosavovic et al. 2020, Designing Network Design Spaces, table 5.

    Batch normalization keeps the output of a convolution, and the next convolution that of ReLU.
    """
    profile = catalogue.profile(WorkloadSpec(name="resnet50"))
    assert 1.8 < profile.activation_bytes_per_sample / 4 / 11.1e6 < 2.2


def job_on(gres: str) -> dict[str, Any]:
    return {"kind": "slurm", "gpus_per_node": 4, "slurm": {"gres": gres}}


LAUNCHES = [
    {"kind": "local", "hardware": "a100-sxm-40gb"},
    {"kind": "simulated", "simulation": {"hardware": "kit-a100"}},
    job_on("gpu:a100-40gb"),
]


@pytest.mark.parametrize("launch", LAUNCHES, ids=json.dumps)
def test_a_run_that_does_not_fit_is_skipped_by_every_launcher(tmp_path, capsys, launch):
    path = write(tmp_path, launch=launch)
    assert main(["check", str(path)]) == 0
    assert main(["run", str(path), "--store", str(tmp_path / "s"), "--dry-run"]) == 0
    shown = capsys.readouterr()
    assert "every run will be skipped" in shown.err
    checked, previewed = shown.out.split("study.yaml: ok")
    (reason,) = load_study(path).forecast().skipped.values()
    for told in (checked, " ".join(previewed.split())):
        assert "1 run of 1 will be skipped" in told
        assert reason in told
    assert "153 GB" in reason
    assert "40 GB" in reason
    assert "train.gradient_accumulation: 6 or a local batch of at most 3" in reason
    assert "bf16" not in reason  # too large too
    if launch["kind"] == "simulated":
        assert run(path, tmp_path / "s").skipped == 1
        assert [record.reason for record in Store(tmp_path / "s").records()] == [reason]


@pytest.mark.parametrize(
    ("local_batch", "changes", "is_skipped", "is_warned"),
    [
        (2, {}, False, False),
        (4, {}, False, True),  # 39.2 GB of 40
        (5, {}, True, False),
        (16, {"train": {"gradient_accumulation": 6}}, False, False),
        (16, {"train": {"compile": True}}, False, True),
        (5, {"sweeps": [{"gpus": [1], "local_batch": [5], "precision": ["bf16"]}]}, False, False),
        (16, {"workloads": [{"name": "mine", "command": ["true"]}]}, False, False),
        (16, {"launch": {"hardware": "our machine"}}, False, False),
        (5, {"launch": job_on("gpu:v100")}, True, False),
        (5, {"launch": job_on("gpu:a100")}, False, False),  # has up to 80 GB
        (5, {"launch": job_on("gpu:strange")}, False, False),
    ],
)
def test_only_what_is_known_is_said(tmp_path, local_batch, changes, is_skipped, is_warned):
    path = write(tmp_path, local_batch, **({"launch": LAUNCHES[0]} | changes))
    known = load_study(path).forecast()
    assert bool(known.skipped) == is_skipped
    assert any("may not fit" in sentence for sentence in known.warnings) == is_warned


@pytest.mark.parametrize(
    ("text", "memory_gb"),
    [
        ("h100-sxm-94gb", 94),
        ("a100", 80),  # at most
        ("nvidia_a100_1g.5gb", 5),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 5),
        ("NVIDIA GH200 480GB", None),  # the memory of its processor
    ],
)
def test_boards_are_known_by_their_names(text, memory_gb):
    assert named_board(text).memory_gb == memory_gb
