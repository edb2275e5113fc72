"""The digits' net with dropout before its last layer."""

import os
import time
from typing import Any

import torch
from torch import nn

from wattlaw.workloads.digits.cnn import DigitsCnn


class DropoutDigits(DigitsCnn):
    """Sleeps ``TEST_PAUSE_S`` seconds for each batch."""

    def model(self) -> nn.Module:
        """Return the net."""
        *layers, last = super().model()
        return nn.Sequential(*layers, nn.Dropout(0.3), last)

    def loss(self, model: nn.Module, data: Any) -> torch.Tensor:
        """Return the mean loss of a batch, after a while."""
        time.sleep(float(os.environ.get("TEST_PAUSE_S", "0")))
        return super().loss(model, data)
