"""Two odd meters."""

import time
from typing import Self

from wattlaw.common.errors import NotAvailable
from wattlaw.measure.devices.meter import Device, Sample, Target


class FlakyMeter:
    def __init__(self, period_s: float) -> None:
        self._left = 3
        self.period_s = period_s

    @classmethod
    def open(cls, target: Target) -> Self:
        return cls(target.period_s)

    def devices(self) -> list[Device]:
        return [Device("flaky-0", "chassis", "a device that is lost")]

    def read(self, *, last: bool = False) -> list[Sample]:
        self._left -= 1
        if self._left < 0:
            raise OSError("device lost")
        return [Sample("flaky-0", "chassis", time.time_ns(), power_w=42.0, power_source="measured")]

    def problems(self) -> list[str]:
        return []

    def close(self) -> None:
        pass


class AbsentMeter(FlakyMeter):
    @classmethod
    def open(cls, target: Target) -> Self:
        raise NotAvailable("no such board; try plugging one in")
