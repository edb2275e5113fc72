"""Counted operations against hand counts, and what entries say of theirs against the counter."""

from typing import Any

import pytest
import torch
from torch import nn

from wattlaw.running.training.flops import flops_per_sample
from wattlaw.study.model import WorkloadSpec
from wattlaw.workloads import catalogue
from wattlaw.workloads.data_loading import InMemory


class Given:
    """A workload whose loss is the sum of what a module returns."""

    def loss(self, model: nn.Module, data: Any) -> torch.Tensor:
        return model(data[0]).abs().sum()


@pytest.mark.parametrize(
    ("net", "shape", "flops"),
    [
        (nn.Linear(30, 7), (4, 30), 2 * 30 * 7 * 2),
        # layers after the first need the gradient of their input
        (
            nn.Sequential(nn.Linear(30, 7), nn.ReLU(), nn.Linear(7, 5)),
            (4, 30),
            2 * (2 * 30 * 7 + 3 * 7 * 5),
        ),
        (nn.Conv2d(3, 8, 5, padding=2), (2, 3, 16, 16), 2 * (2 * 3 * 8 * 25 * 16 * 16)),
    ],
)
def test_operations_are_two_per_weight_and_position_in_each_pass(net, shape, flops):
    assert flops_per_sample(Given(), net, InMemory((torch.randn(*shape),))) == flops


def test_counting_leaves_the_model_as_it_was():
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).eval()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    flops_per_sample(Given(), net, InMemory((torch.randn(4, 3),)))
    assert not net.training
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(parameter.grad is None for parameter in net.parameters())


class Zeros:
    """Samples of one shape, made when asked for."""

    reads_files = False

    def __init__(self, *shapes: tuple[int, ...]) -> None:
        self._shapes = shapes

    def __len__(self) -> int:
        return 2

    def batch(self, indices: Any, seeds: Any) -> Any:
        return tuple(torch.zeros(len(indices), *shape) for shape in self._shapes)


@pytest.mark.parametrize(("stage", "states"), [("pretrain", 2), ("finetune", 3)])
def test_the_work_of_fourcastnet_is_what_is_counted(stage, states):
    spec = WorkloadSpec(name="fourcastnet", options={"stage": stage})
    workload = catalogue.build(spec)
    samples = Zeros(*[(20, 720, 1440)] * states)
    model = workload.model().to("meta")
    assert sum(weights.numel() for weights in model.parameters()) == 72_920_832
    assert catalogue.work(spec).flops_per_sample == flops_per_sample(workload, model, samples)


def test_the_work_of_bert_is_what_is_counted():
    """Its sequences have the maximum of BERT's tokenizer, 512 tokens, as in run_mlm.py."""
    spec = WorkloadSpec(name="bert-base", options={"train_samples": 8})
    workload = catalogue.build(spec)
    with torch.device("meta"):
        model = workload.model()
    counted = flops_per_sample(workload, model, workload.training_data())
    assert catalogue.work(spec)[:2] == (8, counted)


@pytest.mark.parametrize("name", ["schnet", "dimenet"])
def test_the_work_of_molecules_is_that_of_the_first_32_synthetic_ones(name):
    spec = WorkloadSpec(name=name)
    workload = catalogue.build(spec)
    counted = flops_per_sample(workload, workload.model(), workload.training_data())
    assert catalogue.work(spec).flops_per_sample == pytest.approx(counted, rel=0.01)
