"""The GPUs of a simulated run. They can be limited as real ones, with ranges and reading back.

Their limits are in memory and end with the run, so there is nothing to restore if a process dies.
"""

from collections.abc import Iterable
from typing import Self

from wattlaw.devices.limiter import Limiter, LimitState
from wattlaw.errors import NotAvailable
from wattlaw.simulator.cluster import Gpu

#: The name of this limiter in reports of limits, as of the one for single simulated devices.
NAME = "simulated"


class SimulatedGpus(Limiter):
    """Limits the power and the clock of GPUs of one kind."""

    def __init__(self, gpu: Gpu, devices: Iterable[str]) -> None:
        self._gpu = gpu
        self._power_w = dict.fromkeys(devices, gpu.max_w)
        self._clock_mhz: dict[str, float] = {}

    @classmethod
    def open(cls) -> Self:
        """Raise ``NotAvailable``: these GPUs belong to a simulated run."""
        raise NotAvailable("the GPUs of a simulated cluster exist only within its runs")

    def devices(self) -> list[str]:
        """Return the ids of the GPUs."""
        return list(self._power_w)

    def read(self, device: str) -> LimitState:
        """Return the limits and ranges of a GPU."""
        gpu, limit_w = self._gpu, self._limit_w(device)
        return LimitState(
            device,
            f"{gpu.name}, simulated",
            power_limit_w=limit_w,
            enforced_w=limit_w,
            default_w=gpu.max_w,
            min_w=gpu.min_limit_w,
            max_w=gpu.max_w,
            min_mhz=gpu.min_clock_mhz,
            max_mhz=gpu.max_clock_mhz,
        )

    def set_power_limit(self, device: str, watts: float) -> None:
        """Set the power limit of a GPU; raises ``NotAvailable`` if it is out of range."""
        self._check(device, watts, self._gpu.min_limit_w, self._gpu.max_w, "W")
        self._power_w[device] = watts

    def lock_clock(self, device: str, mhz: float) -> None:
        """Lock the clock of a GPU; raises ``NotAvailable`` if it is out of range."""
        self._check(device, mhz, self._gpu.min_clock_mhz, self._gpu.max_clock_mhz, "MHz")
        self._clock_mhz[device] = mhz

    def unlock_clock(self, device: str) -> None:
        """Unlock the clock of a GPU."""
        self._limit_w(device)
        self._clock_mhz.pop(device, None)

    def clock_lock_mhz(self, device: str) -> float | None:
        """Return the frequency of a clock lock, which a real GPU does not report."""
        return self._clock_mhz.get(device)

    def _limit_w(self, device: str) -> float:
        if device not in self._power_w:
            raise NotAvailable(f"{device}: is no GPU of this run")
        return self._power_w[device]

    def _check(self, device: str, value: float, low: float, high: float, unit: str) -> None:
        self._limit_w(device)
        if not low <= value <= high:
            allowed = f"{low:g} to {high:g} {unit} of {self._gpu.name}"
            raise NotAvailable(f"{device}: {value:g} {unit} is outside {allowed}")
