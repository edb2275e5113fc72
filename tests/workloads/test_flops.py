"""Counted operations against hand counts, and what entries say of theirs against the counter."""

from typing import Any

import pytest
import torch
from torch import nn

from wattlaw.running.training.flops import flops_per_sample
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
