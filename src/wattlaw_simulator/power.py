"""The power of a GPU, and its clock under a power limit.

    P = idle + (max - idle) (phi(f) (p_busy + p_compute u_compute) + p_memory u_memory)

with phi(f) = f V(f)^2 / (f_max V_max^2), the switching power of CMOS at clock f and voltage V
(Weste and Harris, CMOS VLSI Design, ch. 5). V is at its minimum up to a knee and rises linearly
above it, as measured on GPUs by Mei, Wang and Chu 2017, doi 10.1016/j.dcan.2016.10.001. u are the
shares of time in which arithmetic and memory work at their achievable rates. Leakage is a constant
part of the idle power: temperature is not modelled.

A power limit acts on each kernel, not on their mean (``Board.run``); docs/simulator.md compares
that with public traces of a V100.
"""

from dataclasses import dataclass

import numpy as np

from wattlaw.hardware.cluster import Gpu
from wattlaw.study.base_model import Precision
from wattlaw_simulator.kernels import Busy, Floats, Load, busy
from wattlaw_simulator.simulated_job import Parameters

_BISECTIONS = 16  # to a 65,000th of the range of clocks


def switching(gpu: Gpu, clocks_mhz: Floats) -> Floats:
    """Return phi(f): switching power at a clock over that at the highest clock."""
    clocks = np.asarray(clocks_mhz, dtype=float)
    above = np.maximum(0.0, clocks - gpu.knee_clock_mhz)
    span = gpu.max_clock_mhz - gpu.knee_clock_mhz
    voltage = gpu.least_voltage + (1 - gpu.least_voltage) * (above / span if span else 1.0)
    return clocks / gpu.max_clock_mhz * voltage**2


@dataclass(frozen=True)
class Point:
    """The operating point of a GPU: its mean clock, its times of computing and waiting, its power.

    ``limited_share`` is the share of the computing in which a power limit lowers the clock.
    """

    clock_mhz: float
    compute_s: float
    launch_s: float
    compute_w: float
    memory_share: float
    limited_share: float


@dataclass(frozen=True)
class Board:
    gpu: Gpu
    precision: Precision
    parameters: Parameters
    power_limit_w: float | None = None
    clock_limit_mhz: float | None = None

    @property
    def limit_w(self) -> float:
        return min(self.power_limit_w or self.gpu.max_w, self.gpu.max_w)

    @property
    def top_mhz(self) -> float:
        return min(self.clock_limit_mhz or self.gpu.max_clock_mhz, self.gpu.max_clock_mhz)

    def run(self, load: Load, host_s: float) -> Point:
        """Return the operating point of a load that the host takes ``host_s`` to launch. Each
        kernel runs at the highest clock at which its power is within the limit; if it exceeds that
        at the lowest clock, the GPU pauses within the kernel."""
        limit_w = self.limit_w
        top_mhz = np.full_like(load.count, self.top_mhz)
        low_mhz = np.minimum(self.gpu.min_clock_mhz, top_mhz)
        is_limited = self._kernels(load, top_mhz)[0] > limit_w
        high_mhz = top_mhz
        for _ in range(_BISECTIONS if is_limited.any() else 0):
            middle_mhz = (low_mhz + high_mhz) / 2
            fits = self._kernels(load, middle_mhz)[0] <= limit_w
            low_mhz = np.where(fits, middle_mhz, low_mhz)
            high_mhz = np.where(fits, high_mhz, middle_mhz)
        clocks_mhz = np.where(is_limited, low_mhz, top_mhz)
        powers_w, busy_at = self._kernels(load, clocks_mhz)
        idle_w = self.gpu.idle_w
        longer = np.maximum(1.0, (powers_w - idle_w) / (limit_w - idle_w))  # by pauses
        times_s = load.count * busy_at.duration_s * longer
        compute_s = float(times_s.sum())
        shares = times_s / max(compute_s, np.finfo(float).tiny)
        return Point(
            clock_mhz=min(self.top_mhz, float(shares @ clocks_mhz)) if compute_s else self.top_mhz,
            compute_s=compute_s,
            launch_s=max(0.0, host_s - compute_s),
            compute_w=float(shares @ np.minimum(powers_w, limit_w)),
            memory_share=float(shares @ (busy_at.memory_share / longer)),
            limited_share=float(shares @ is_limited),
        )

    def constant_w(self, share: float, clock_mhz: float) -> float:
        """Return idle power and a share of the dynamic power at a clock, at most the limit."""
        span_w = self.gpu.max_w - self.gpu.idle_w
        power_w = self.gpu.idle_w + span_w * share * float(switching(self.gpu, np.array(clock_mhz)))
        return min(power_w, self.limit_w)

    def _kernels(self, load: Load, clocks_mhz: Floats) -> tuple[Floats, Busy]:
        busy_at = busy(load, self.gpu, self.precision, self.parameters, clocks_mhz)
        parameters, span_w = self.parameters, self.gpu.max_w - self.gpu.idle_w
        clocked = parameters.power_busy + parameters.power_compute * busy_at.compute_share
        dynamic = switching(self.gpu, clocks_mhz) * clocked
        dynamic += parameters.power_memory * busy_at.memory_share
        return self.gpu.idle_w + span_w * dynamic, busy_at
