"""An outside package, as a user might install it: a workload that fails and two odd meters."""

import time
from typing import Self

import torch
from pydantic import BaseModel, ConfigDict
from torch import nn

from wattlaw.devices.meter import Device, Sample, Target
from wattlaw.errors import NotAvailable
from wattlaw.workloads.digits import Options as DigitsOptions
from wattlaw.workloads.digits.cnn import DigitsCnn
from wattlaw.workloads.workload import Entry


class Options(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


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


ENTRY = Entry("broken", "fails", 85_066, "accuracy", Options, "wattlaw_test_plugin:Broken")


class FlakyMeter:
    """A device that is lost after three readings."""

    def __init__(self) -> None:
        self._left = 3

    @classmethod
    def open(cls, target: Target) -> Self:
        return cls()

    def devices(self) -> list[Device]:
        return [Device("flaky-0", "node", "a device that is lost")]

    def read(self) -> list[Sample]:
        self._left -= 1
        if self._left < 0:
            raise OSError("device lost")
        return [Sample("flaky-0", "node", time.time_ns(), power_w=42.0, power_source="measured")]

    def close(self) -> None:
        pass


class AbsentMeter(FlakyMeter):
    @classmethod
    def open(cls, target: Target) -> Self:
        raise NotAvailable("no such board; try plugging one in")
