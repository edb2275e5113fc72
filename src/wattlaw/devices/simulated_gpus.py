"""The boards of one simulated run, that can be limited as real ones: ranges, reading back.

Their limits are kept in memory and are gone with the run, so nothing is left to be given back
when a process dies.
"""

from collections.abc import Iterable
from typing import Self

from wattlaw.devices.limiter import LimitState
from wattlaw.errors import NotAvailable
from wattlaw.simulator.cluster import Gpu

#: What reports of limits call this limiter, as the one for single simulated devices.
NAME = "simulated"


class SimulatedGpus:
    """Limits the power and the clock of boards of one kind.

    Parameters
    ----------
    gpu
        What each of them is.
    devices
        Their ids.
    """

    def __init__(self, gpu: Gpu, devices: Iterable[str]) -> None:
        self._gpu = gpu
        self._power_w = dict.fromkeys(devices, gpu.max_w)
        self._clock_mhz: dict[str, float] = {}

    @classmethod
    def open(cls) -> Self:
        """Refuse: these boards belong to a run; raises ``NotAvailable``."""
        raise NotAvailable("the boards of a simulated cluster are there within its runs only")

    def devices(self) -> list[str]:
        """Return the ids of the boards."""
        return list(self._power_w)

    def read(self, device: str) -> LimitState:
        """Return how a board stands."""
        gpu, limit_w = self._gpu, self._known(device)
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
        """Set the power limit of a board; raises ``NotAvailable`` where it has no such limit."""
        self._known(device)
        self._check(device, watts, self._gpu.min_limit_w, self._gpu.max_w, "W")
        self._power_w[device] = watts

    def lock_clock(self, device: str, mhz: float) -> None:
        """LimitLease the clock of a board; raises ``NotAvailable`` where it has no such clock."""
        self._known(device)
        self._check(device, mhz, self._gpu.min_clock_mhz, self._gpu.max_clock_mhz, "MHz")
        self._clock_mhz[device] = mhz

    def unlock_clock(self, device: str) -> None:
        """Let the clock of a board go again."""
        self._known(device)
        self._clock_mhz.pop(device, None)

    def clock_lock_mhz(self, device: str) -> float | None:
        """Return at which clock a board is held, which no real one tells."""
        return self._clock_mhz.get(device)

    def close(self) -> None:
        """Nothing is held open."""

    def _known(self, device: str) -> float:
        if device not in self._power_w:
            raise NotAvailable(f"{device}: is no board of this run")
        return self._power_w[device]

    def _check(self, device: str, given: float, low: float, high: float, unit: str) -> None:
        if not low <= given <= high:
            told = f"{given:g} {unit} is outside {low:g} to {high:g} {unit} of {self._gpu.name}"
            raise NotAvailable(f"{device}: {told}")
