"""A workload that fails on one rank."""

import torch
from torch import nn

from wattlaw.workloads.digits import Options as DigitsOptions
from wattlaw.workloads.digits.cnn import DigitsCnn
from wattlaw_test_plugin import Options


class Broken(DigitsCnn):
    """Trains like the digits, and fails in its second epoch, on rank 1 only."""

    def __init__(self, options: Options) -> None:
        super().__init__(DigitsOptions())
        self._steps = 0

    def loss(self, model: nn.Module, data: object) -> torch.Tensor:
        self._steps += 1
        if self._steps > 15 and torch.distributed.get_rank() == 1:
            raise ValueError("sample 7\nis broken")
        return super().loss(model, data)
