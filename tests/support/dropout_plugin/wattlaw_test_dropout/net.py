"""The digits' net with dropout before its last layer."""

import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from wattlaw.workloads.digits.cnn import DigitsCnn


class DropoutDigits(DigitsCnn):
    """Sleeps for each batch the seconds that stand in the file ``TEST_PAUSE_FILE``, if any."""

    def model(self) -> nn.Module:
        *layers, last = super().model()
        return nn.Sequential(*layers, nn.Dropout(0.3), last)

    def loss(self, model: nn.Module, data: Any) -> torch.Tensor:
        path = os.environ.get("TEST_PAUSE_FILE")
        time.sleep(float(Path(path).read_text()) if path else 0)
        return super().loss(model, data)
