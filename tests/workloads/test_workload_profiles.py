"""Profiles of workloads against hand-worked kernels, torch's FLOP counter and published numbers."""

import json
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import paths
from wattlaw.cli.main import main
from wattlaw.common.errors import BadInput
from wattlaw.running.training.flops import flops_per_sample
from wattlaw.study.model import WorkloadSpec
from wattlaw.workloads import catalogue
from wattlaw.workloads.data_loading import InMemory
from wattlaw.workloads.profile import WorkloadProfile
from wattlaw_simulator.profiling.profile_command import read_profile
from wattlaw_simulator.profiling.profiler import measure_profile, trace_step

META, CPU = torch.device("meta"), torch.device("cpu")
STORED = sorted((paths.ROOT / "src").glob("*/workloads/*/profiles/*.json"))
SMALL_RESNET = {"blocks": [1, 1, 1, 1], "image_size": 64, "classes": 10, "train_samples": 8}


class Given:
    """A workload whose loss is the sum of what a module returns."""

    def loss(self, model: nn.Module, data: Any) -> torch.Tensor:
        return model(data).sum()

    def optimizer(self, model: nn.Module, global_batch: int, *, fused: bool | None) -> Any:
        return torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)


def kernels(model: nn.Module, data: torch.Tensor, phase: str, device: torch.device = META) -> Any:
    """Return names, operations and numbers (of 4 bytes) moved of the kernels of a phase."""
    trace = trace_step(Given(), model, data, device)
    return [
        (one.name, one.flops, one.moved_bytes / 4) for which, one in trace.kernels if which == phase
    ]


@pytest.mark.parametrize("device", [META, CPU])
def test_a_linear_layer_reads_inputs_weights_and_bias_and_writes_outputs(device):
    n, inputs, outputs = 4, 30, 7
    layer, data = nn.Linear(inputs, outputs), torch.randn(n, inputs)
    product, total = kernels(layer, data, "forward", device)
    moved = n * inputs + inputs * outputs + outputs + n * outputs
    assert product == ("addmm", 2 * n * inputs * outputs, moved)
    assert total == ("sum", 0, n * outputs + 1)
    ones, weight, bias = kernels(layer, data, "backward", device)
    assert ones == ("ones_like", 0, 1)
    # What comes back from the sum is one number, expanded.
    assert weight == ("mm", 2 * n * inputs * outputs, 1 + n * inputs + inputs * outputs)
    assert bias == ("sum", 0, 1 + outputs)
    (update,) = kernels(layer, data, "optimizer", device)
    assert update == ("_foreach_add_", 0, 3 * (inputs * outputs + outputs))


def test_a_convolution_with_bias_is_two_kernels_and_three_gradients():
    net = nn.Sequential(nn.Conv2d(2, 2, 1), nn.Conv2d(2, 5, 3, padding=1))
    image, maps, weights = 3 * 2 * 64, 3 * 5 * 64, 2 * 5 * 9
    forward = kernels(net, torch.randn(3, 2, 8, 8), "forward")
    operations = 2 * 3 * 64 * weights
    assert forward[2] == ("convolution", operations, image + weights + maps)
    assert forward[3] == ("add_", 0, 2 * maps + 5)
    backward = kernels(net, torch.randn(3, 2, 8, 8), "backward")
    assert backward[1:4] == [
        ("convolution_backward", operations, 1 + weights + image),
        ("convolution_backward", operations, 1 + image + weights),
        ("convolution_backward", 0, 1 + 5),
    ]


def total(profile: WorkloadProfile, name: str, *phases: str) -> float:
    rows = [row for row in profile.kernels if not phases or row.phase in phases]
    return sum(row.count * getattr(row, name) for row in rows)


def test_operations_of_a_small_resnet_are_those_of_torchs_counter():
    spec = WorkloadSpec(name="resnet50", options=SMALL_RESNET)
    workload, numbers = catalogue.build(spec), np.arange(4)
    model = workload.model().train()
    data = workload.training_data().batch(numbers, numbers.astype(np.uint64))
    with FlopCounterMode(display=False) as counter:  # on the CPU, and nothing of ours
        workload.loss(model, data).backward()
    expected, profile = counter.get_total_flops() / 4, measure_profile(spec)
    assert profile.flops_per_sample == pytest.approx(expected, rel=1e-6)
    assert total(profile, "flops_per_sample") == pytest.approx(expected, rel=1e-5)


def test_counting_operations_leaves_the_model_as_it_was():
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).eval()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    workload = SimpleNamespace(loss=lambda model, data: model(data[0]).sum())
    assert flops_per_sample(workload, net, InMemory((torch.ones(4, 3),))) > 0
    assert not net.training
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(parameter.grad is None for parameter in net.parameters())


def test_counting_digits_anew_gives_the_stored_file():
    digits = measure_profile(WorkloadSpec(name="digits-cnn"))
    (path,) = [path for path in STORED if path.stem == "digits-cnn"]
    measured = {"counted", "input_cpu_s_per_sample"}
    assert digits.model_dump(exclude=measured) == read_profile(path).model_dump(exclude=measured)


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_every_stored_file_agrees_with_its_workload(path):
    profile = read_profile(path)
    entry = catalogue.entry(profile.workload)
    work = catalogue.work(WorkloadSpec(name=profile.workload, options=profile.options))
    assert profile.parameters == entry.parameters
    assert profile.gradient_bytes == 4 * entry.parameters
    assert profile.flops_per_sample == pytest.approx(work.flops_per_sample, rel=1e-3)
    assert total(profile, "flops_per_sample") == pytest.approx(profile.flops_per_sample, rel=1e-4)
    assert total(profile, "flops_per_sample", "backward") == pytest.approx(
        2 * total(profile, "flops_per_sample", "forward"), rel=0.3
    )
    assert len(profile.kernels) <= 150
    assert 2 < len(profile.gradients_ready) <= 32
    # An optimiser reads weights and gradients and writes weights at the least.
    assert total(profile, "bytes_fixed", "optimizer") >= 12 * profile.parameters * (1 - 1e-6)
    for name in ("PyTorch", "batches", "core of"):
        assert name in profile.counted


def test_resnet50_has_the_published_operations_parameters_and_kernels():
    """4.09e9 multiply-adds forward (torchvision's model card), backward twice as many."""
    profile = catalogue.profile(WorkloadSpec(name="resnet50"))
    forward = total(profile, "flops_per_sample", "forward")
    assert forward == pytest.approx(2 * 4.09e9, rel=0.01)
    assert profile.flops_per_sample == pytest.approx(3 * forward, rel=0.02)
    assert profile.parameters == 25_557_032
    assert profile.layers == 53 + 53 + 1  # convolutions, normalisations, classifier
    # 53 each of convolution, normalisation and its counter; 49 ReLU; 16 sums of branches.
    counts = sum(row.count for row in profile.kernels if row.phase == "forward")
    assert counts == pytest.approx(3 * 53 + 49 + 16, abs=12)


@pytest.mark.parametrize(
    ("name", "options", "found"),
    [
        ("resnet50", {}, {}),
        ("resnet50", {"recipe": "kit", "train_samples": 1000}, {"recipe": "kit"}),
        ("fourcastnet", {"lr": 0.1}, {}),
        ("fourcastnet", {"stage": "finetune", "step": 2}, {"stage": "finetune"}),
        ("schnet", {"source": "qm9", "data": "/qm9"}, {}),
    ],
)
def test_figures_are_found_by_operations_and_then_by_options(name, options, found):
    profile = catalogue.profile(WorkloadSpec(name=name, options=options))
    assert (profile.workload, profile.options) == (name, found)


def test_a_missing_profile_gives_a_one_line_error():
    with pytest.raises(BadInput, match="wattlaw profile resnet50 --options"):
        catalogue.profile(WorkloadSpec(name="resnet50", options=SMALL_RESNET))
    with pytest.raises(BadInput, match="a command has no profile"):
        catalogue.profile(WorkloadSpec(name="mine", command=("python", "x.py")))
    with pytest.raises(BadInput, match="given 0; allowed"):
        catalogue.profile(WorkloadSpec(name="resnet50", options={"image_size": 0}))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"kernels": []}, "kernels: "),
        ({"gradients_ready": [[0, 0], [0.5, 0.7]]}, "must ascend"),
        ({"work_cv": math.nan}, "work_cv: "),
        (None, ""),
    ],
)
def test_a_file_of_figures_that_is_wrong_is_refused_with_its_key(tmp_path, content, said):
    path = tmp_path / "profile.json"
    if isinstance(content, dict):
        content = json.dumps(json.loads(STORED[0].read_text(encoding="utf-8")) | content).encode()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadInput) as caught:
        read_profile(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_command_counts_own_options_and_its_file_can_be_read(tmp_path, capsys):
    path = tmp_path / "own.json"
    line = ["profile", "digits-cnn", "--options", '{"width": 8, "momentum": 0.9}']
    assert main([*line, "-o", str(path)]) == 0
    assert "kernels per step" in capsys.readouterr().out
    written = read_profile(path)
    assert written.options == {"width": 8}  # the other one is at its default
    convolutions, dense = 8 * 9 + 16 * 8 * 9 + 8 + 16, 16 * 16 * 16 + 16 + 16 * 10 + 10
    assert written.parameters == convolutions + dense
    assert main(line) == 0
    printed = WorkloadProfile.model_validate_json(capsys.readouterr().out)
    assert printed.kernels == written.kernels
