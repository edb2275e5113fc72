"""The power of a GPU, and the clock that a power limit leaves it.

    P = idle + (max - idle) (phi(f) (p_busy + p_compute u_compute) + p_memory u_memory)

with phi(f) = f V(f)^2 / (f_max V_max^2), the switching power of CMOS at clock f and voltage V
(Weste and Harris, CMOS VLSI Design, ch. 5); V stays at its least up to a knee and rises in a
straight line from there (such curves were measured on GPUs by Mei, Wang and Chu 2017, doi
10.1016/j.dcan.2016.10.001). u are the shares of time in which arithmetic and memory work at their
achievable rates. Leakage is in the idle power and does not change: temperature is not modelled.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from wattlaw.simulator.cluster import Gpu
from wattlaw.simulator.kernels import Busy, Load, busy
from wattlaw.simulator.parameters import Parameters
from wattlaw.study.base import Precision

Floats = npt.NDArray[np.float64]

#: Clocks that are tried between the least and the highest one, and then between the two between
#: which the limit lies, and so on: to a 27,000th of the range.
_CLOCKS, _ROUNDS = 31, 3


def switching(gpu: Gpu, clocks_mhz: Floats) -> Floats:
    """Return phi(f): switching power at a clock over that at the highest clock."""
    clocks = np.asarray(clocks_mhz, dtype=float)
    above = np.maximum(0.0, clocks - gpu.knee_clock_mhz)
    span = gpu.max_clock_mhz - gpu.knee_clock_mhz
    voltage = gpu.least_voltage + (1 - gpu.least_voltage) * (above / span if span else 1.0)
    phi: Floats = clocks / gpu.max_clock_mhz * voltage**2
    return phi


def with_curve(gpu: Gpu, parameters: Parameters) -> Gpu:
    """Return the board with the voltage curve of a calibration, where there is one."""
    changed: dict[str, float] = {}
    if parameters.least_voltage is not None:
        changed["least_voltage"] = parameters.least_voltage
    if parameters.knee is not None:
        changed["knee_clock_mhz"] = max(gpu.min_clock_mhz, parameters.knee * gpu.max_clock_mhz)
    return gpu.model_copy(update=changed) if changed else gpu


@dataclass(frozen=True)
class Point:
    """How a GPU runs: its clock, how long it computes and waits for the host, at what power."""

    clock_mhz: float
    compute_s: float
    launch_s: float
    compute_w: float
    compute_share: float
    memory_share: float
    limited_by: str | None  # "power_limit_w" | "clock_limit_mhz"


@dataclass(frozen=True)
class Board:
    """A GPU at some precision, with limits."""

    gpu: Gpu
    precision: Precision
    parameters: Parameters
    power_limit_w: float | None = None
    clock_limit_mhz: float | None = None

    def awake_w(self, clock_mhz: float) -> float:
        """Return the power of waiting with clocks up."""
        return self._with(self.parameters.power_awake, clock_mhz)

    def communication_w(self, clock_mhz: float) -> float:
        """Return the power of gradient communication and of waiting for other ranks in it."""
        return self._with(self.parameters.power_communication, clock_mhz)

    def run(self, load: Load, host_s: float) -> Point:
        """Return how the GPU runs a load that the host takes ``host_s`` to issue.

        It runs at the highest clock at which its mean power while it computes and waits for the
        host stays within the limit; kernels and gaps change places in microseconds, of which a
        board's control sees the mean. Where even the least clock draws more, it pauses in between.
        """
        gpu, top_mhz = self.gpu, self._top_mhz()
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
        # A straight line between the last two: calibration needs slopes, and a grid has none.
        low_w, high_w = float(powers[best]), float(powers[best + 1])
        clock_mhz = low_mhz + (high_mhz - low_mhz) * (limit_w - low_w) / (high_w - low_w)
        return self._at(load, host_s, clock_mhz, "power_limit_w")

    def _top_mhz(self) -> float:
        return min(self.clock_limit_mhz or self.gpu.max_clock_mhz, self.gpu.max_clock_mhz)

    def _with(self, share: float, clock_mhz: float) -> float:
        """Return the power of a share of the dynamic power that goes with the clock, limited."""
        span_w = self.gpu.max_w - self.gpu.idle_w
        wanted = self.gpu.idle_w + span_w * share * float(switching(self.gpu, np.array(clock_mhz)))
        return min(wanted, self.power_limit_w or self.gpu.max_w, self.gpu.max_w)

    def _compute_w(self, found: Busy, clocks_mhz: Floats) -> Floats:
        own, span_w = self.parameters, self.gpu.max_w - self.gpu.idle_w
        with_clock = own.power_busy + own.power_compute * found.compute_share
        dynamic = switching(self.gpu, clocks_mhz) * with_clock
        return self.gpu.idle_w + span_w * (dynamic + own.power_memory * found.memory_share)

    def _mean_w(self, load: Load, host_s: float, clocks_mhz: Floats) -> Floats:
        """Return the mean power of computing and of waiting for the host, at each clock."""
        found = busy(load, self.gpu, self.precision, self.parameters, clocks_mhz)
        waits_s = np.maximum(0.0, host_s - found.duration_s)
        awake = self.parameters.power_awake * switching(self.gpu, clocks_mhz)
        awake_w = self.gpu.idle_w + (self.gpu.max_w - self.gpu.idle_w) * awake
        energy_j = self._compute_w(found, clocks_mhz) * found.duration_s + awake_w * waits_s
        in_all_s = found.duration_s + waits_s
        return np.divide(energy_j, in_all_s, out=awake_w.copy(), where=in_all_s > 0)

    def _at(self, load: Load, host_s: float, clock_mhz: float, limited_by: str | None) -> Point:
        clocks = np.array([clock_mhz])
        found = busy(load, self.gpu, self.precision, self.parameters, clocks)
        compute_s = float(found.duration_s[0])
        return Point(
            clock_mhz,
            compute_s,
            max(0.0, host_s - compute_s),
            float(self._compute_w(found, clocks)[0]),
            float(found.compute_share[0]),
            float(found.memory_share[0]),
            limited_by,
        )

    def _paused(self, load: Load, host_s: float, clock_mhz: float, limit_w: float) -> Point:
        """Return the least clock, stretched by pauses at idle power until the mean fits."""
        point = self._at(load, host_s, clock_mhz, "power_limit_w")
        idle_w = self.gpu.idle_w
        mean_w = float(self._mean_w(load, host_s, np.array([clock_mhz]))[0])
        longer = (mean_w - idle_w) / (limit_w - idle_w)
        took_s = (point.compute_s + point.launch_s) * longer
        pauses_s = took_s - point.compute_s
        # What the kernels draw beside pauses for the mean to be the limit.
        compute_w = (limit_w * took_s - self.awake_w(clock_mhz) * pauses_s) / point.compute_s
        return replace(point, launch_s=pauses_s, compute_w=compute_w)
