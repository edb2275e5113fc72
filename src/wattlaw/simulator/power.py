"""The power of a GPU, and its clock under a power limit.

    P = idle + (max - idle) (phi(f) (p_busy + p_compute u_compute) + p_memory u_memory)

with phi(f) = f V(f)^2 / (f_max V_max^2), the switching power of CMOS at clock f and voltage V
(Weste and Harris, CMOS VLSI Design, ch. 5). V is at its minimum up to a knee and rises linearly
above it, as measured on GPUs by Mei, Wang and Chu 2017, doi 10.1016/j.dcan.2016.10.001. u are the
shares of time in which arithmetic and memory work at their achievable rates. Leakage is a constant
part of the idle power: temperature is not modelled.
"""

from dataclasses import dataclass, replace

import numpy as np

from wattlaw.simulator.cluster import Gpu
from wattlaw.simulator.job import Parameters
from wattlaw.simulator.kernels import Busy, Floats, Load, busy
from wattlaw.study.base import Precision

#: The search tries this many clocks of a range, then of the interval with the limit, and so on: to
#: a 27,000th of the range.
_CLOCKS, _ROUNDS = 31, 3


def switching(gpu: Gpu, clocks_mhz: Floats) -> Floats:
    """Return phi(f): switching power at a clock over that at the highest clock."""
    clocks = np.asarray(clocks_mhz, dtype=float)
    above = np.maximum(0.0, clocks - gpu.knee_clock_mhz)
    span = gpu.max_clock_mhz - gpu.knee_clock_mhz
    voltage = gpu.least_voltage + (1 - gpu.least_voltage) * (above / span if span else 1.0)
    return clocks / gpu.max_clock_mhz * voltage**2


@dataclass(frozen=True)
class Point:
    """The operating point of a GPU: its clock, its times of computing and waiting, its power."""

    clock_mhz: float
    compute_s: float
    launch_s: float
    compute_w: float
    memory_share: float
    limited_by: str | None  # "power_limit_w" | "clock_limit_mhz"


@dataclass(frozen=True)
class Board:
    """A GPU with a precision and limits."""

    gpu: Gpu
    precision: Precision
    parameters: Parameters
    power_limit_w: float | None = None
    clock_limit_mhz: float | None = None

    def awake_w(self, clock_mhz: float) -> float:
        """Return the power of waiting at a clock."""
        return self._with(self.parameters.power_awake, clock_mhz)

    def communication_w(self, clock_mhz: float) -> float:
        """Return the power of gradient communication, which includes waiting for other ranks."""
        return self._with(self.parameters.power_communication, clock_mhz)

    def run(self, load: Load, host_s: float) -> Point:
        """Return the operating point of a load that the host takes ``host_s`` to launch.

        The GPU runs at the highest clock at which its mean power of computing and waiting for the
        host is within the limit. Kernels and gaps alternate within microseconds, of which the
        board's control sees the mean. It pauses where even the lowest clock exceeds the limit.
        """
        gpu = self.gpu
        top_mhz = min(self.clock_limit_mhz or gpu.max_clock_mhz, gpu.max_clock_mhz)
        limit_w = min(self.power_limit_w or gpu.max_w, gpu.max_w)
        low_mhz = min(gpu.min_clock_mhz, top_mhz)
        if float(self._mean_w(load, host_s, np.array([low_mhz]))[0]) > limit_w:
            return self._paused(load, host_s, low_mhz, limit_w)
        high_mhz = top_mhz
        for _ in range(_ROUNDS):
            clocks = np.linspace(low_mhz, high_mhz, _CLOCKS)
            powers = self._mean_w(load, host_s, clocks)
            best = int(np.flatnonzero(powers <= limit_w)[-1])
            if best == _CLOCKS - 1:
                by = "clock_limit_mhz" if top_mhz < gpu.max_clock_mhz else None
                return self._at(load, host_s, top_mhz, by)
            low_mhz, high_mhz = float(clocks[best]), float(clocks[best + 1])
        low_w, high_w = float(powers[best]), float(powers[best + 1])
        clock_mhz = low_mhz + (high_mhz - low_mhz) * (limit_w - low_w) / (high_w - low_w)
        return self._at(load, host_s, clock_mhz, "power_limit_w")

    def _with(self, share: float, clock_mhz: float) -> float:
        """Return idle power and a share of the dynamic power at a clock, at most the limit."""
        span_w = self.gpu.max_w - self.gpu.idle_w
        power_w = self.gpu.idle_w + span_w * share * float(switching(self.gpu, np.array(clock_mhz)))
        return min(power_w, self.power_limit_w or self.gpu.max_w, self.gpu.max_w)

    def _compute_w(self, busy_at: Busy, clocks_mhz: Floats) -> Floats:
        parameters, span_w = self.parameters, self.gpu.max_w - self.gpu.idle_w
        clocked = parameters.power_busy + parameters.power_compute * busy_at.compute_share
        dynamic = switching(self.gpu, clocks_mhz) * clocked
        return self.gpu.idle_w + span_w * (dynamic + parameters.power_memory * busy_at.memory_share)

    def _mean_w(self, load: Load, host_s: float, clocks_mhz: Floats) -> Floats:
        """Return the mean power of computing and of waiting for the host, at each clock."""
        busy_at = busy(load, self.gpu, self.precision, self.parameters, clocks_mhz)
        waits_s = np.maximum(0.0, host_s - busy_at.duration_s)
        awake = self.parameters.power_awake * switching(self.gpu, clocks_mhz)
        awake_w = self.gpu.idle_w + (self.gpu.max_w - self.gpu.idle_w) * awake
        energy_j = self._compute_w(busy_at, clocks_mhz) * busy_at.duration_s + awake_w * waits_s
        total_s = busy_at.duration_s + waits_s
        return np.divide(energy_j, total_s, out=awake_w.copy(), where=total_s > 0)

    def _at(self, load: Load, host_s: float, clock_mhz: float, limited_by: str | None) -> Point:
        clocks = np.array([clock_mhz])
        busy_at = busy(load, self.gpu, self.precision, self.parameters, clocks)
        compute_s = float(busy_at.duration_s[0])
        compute_w = float(self._compute_w(busy_at, clocks)[0])
        memory_share = float(busy_at.memory_share[0])
        launch_s = max(0.0, host_s - compute_s)
        return Point(clock_mhz, compute_s, launch_s, compute_w, memory_share, limited_by)

    def _paused(self, load: Load, host_s: float, clock_mhz: float, limit_w: float) -> Point:
        """Return the lowest clock, with pauses at idle power that lower the mean to the limit."""
        point = self._at(load, host_s, clock_mhz, "power_limit_w")
        idle_w = self.gpu.idle_w
        mean_w = float(self._mean_w(load, host_s, np.array([clock_mhz]))[0])
        longer = (mean_w - idle_w) / (limit_w - idle_w)
        total_s = (point.compute_s + point.launch_s) * longer
        pauses_s = total_s - point.compute_s
        # The kernels' power with which the mean is the limit.
        compute_w = (limit_w * total_s - self.awake_w(clock_mhz) * pauses_s) / point.compute_s
        return replace(point, launch_s=pauses_s, compute_w=compute_w)
