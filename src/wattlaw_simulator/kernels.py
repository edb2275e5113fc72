"""The time of kernels: a roofline with achievable fractions, and a fixed time for each kernel.

A kernel of F operations and B bytes takes, at clock f,

    t(f) = t0 f_max / f + max(F / (e_c P f / f_max), B / (e_m min(W, W_L2 f / f_max)))

with P the arithmetic peak, W the memory bandwidth, W_L2 the cache bandwidth, e_c and e_m the
achieved fractions, t0 the start and end of a kernel (the roofline: Williams, Waterman and
Patterson 2009, doi 10.1145/1498765.1498785). Arithmetic, cache and t0 scale with the clock; the
memory has its own clock.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wattlaw.common.errors import BadInput
from wattlaw.hardware.cluster import Gpu
from wattlaw.study.base_model import Precision
from wattlaw.workloads.profile import WorkloadProfile
from wattlaw_simulator.simulated_job import Parameters

Floats = npt.NDArray[np.float64]

#: Bandwidth of the second-level cache at the highest clock over that of the memory: 2155 GB/s and
#: 900 GB/s on V100 (Jia et al. 2018, arXiv 1804.06826), assumed for all boards. The cache is the
#: limit below 0.42 of the highest clock.
CACHE_OVER_MEMORY = 2155 / 900
#: Bytes of an activation over those of float32, under automatic mixed precision.
_ACTIVATION_SIZE: dict[Precision, float] = {"fp32": 1.0, "tf32": 1.0, "bf16": 0.5, "fp16": 0.5}


@dataclass(frozen=True)
class Load:
    """The kernels of one micro-batch, as arrays of shape (kinds,)."""

    count: Floats
    flops: Floats
    bytes_moved: Floats

    @property
    def launches(self) -> float:
        return float(self.count.sum())


@dataclass(frozen=True)
class Busy:
    """The time of each kernel at its clock, and the parts of it, as arrays of the clocks' shape."""

    duration_s: Floats
    compute_share: Floats  # time of the arithmetic alone, at its achievable rate, over duration_s
    memory_share: Floats  # likewise of the memory


def kernel_load(
    profile: WorkloadProfile, phases: Collection[str], samples: float, precision: Precision
) -> Load:
    table = np.concatenate([profile.tables[phase] for phase in phases])
    count, flops, per_sample, fixed = table.T
    return Load(count, flops * samples, per_sample * samples * _ACTIVATION_SIZE[precision] + fixed)


def peak_flops(gpu: Gpu, precision: Precision) -> float:
    if precision not in gpu.peak_tflops:
        allowed = ", ".join(sorted(gpu.peak_tflops))
        raise BadInput(f"precision: given {precision}; allowed on {gpu.name}: {allowed}")
    return gpu.peak_tflops[precision] * 1e12


def busy(
    load: Load, gpu: Gpu, precision: Precision, parameters: Parameters, clocks_mhz: Floats
) -> Busy:
    """Return time and utilisation of each kernel; clocks have the shape (..., kinds)."""
    share = clocks_mhz / gpu.max_clock_mhz
    achieved = parameters.compute_fp32 if precision == "fp32" else parameters.compute_tensor
    compute_s = load.flops / (achieved * peak_flops(gpu, precision) * share)
    # Of memory and cache together, in bytes per second.
    bandwidth = gpu.memory_bandwidth_gb_s * 1e9 * np.minimum(1.0, CACHE_OVER_MEMORY * share)
    memory_s = load.bytes_moved / (parameters.bandwidth * bandwidth)
    total_s = parameters.kernel_us * 1e-6 / share + np.maximum(compute_s, memory_s)
    at_least = np.maximum(total_s, np.finfo(float).tiny)  # of an empty kernel
    return Busy(total_s, compute_s / at_least, memory_s / at_least)


def roofline_s(load: Load, gpu: Gpu, precision: Precision) -> float:
    """Return the least time of a load: every kernel at the hardware's peaks, without t0."""
    compute_s = load.flops / peak_flops(gpu, precision)
    memory_s = load.bytes_moved / (gpu.memory_bandwidth_gb_s * 1e9)
    return float((np.maximum(compute_s, memory_s) * load.count).sum())
