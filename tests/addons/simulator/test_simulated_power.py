"""The power of a simulated GPU and the clock under a cap, against a search of another kind."""

from dataclasses import fields, replace

import numpy as np
import pytest
from scipy.optimize import brentq

from made_jobs import profile
from wattlaw.hardware.library import cluster_names, read_cluster
from wattlaw_simulator import kernels
from wattlaw_simulator.power import Board, switching
from wattlaw_simulator.simulated_job import Parameters

BOARDS = {name: read_cluster(name).gpu for name in cluster_names()}
GPU = BOARDS["mit-v100"]
LOAD = kernels.kernel_load(profile(), ("forward", "backward", "optimizer"), 64, "fp32")


def test_switching_power_is_clock_times_voltage_squared():
    gpu = GPU.model_copy(
        update={"min_clock_mhz": 100.0, "knee_clock_mhz": 500.0, "max_clock_mhz": 1000.0,
                "least_voltage": 0.7}
    )  # fmt: skip
    found = switching(gpu, np.array([250.0, 500.0, 750.0, 1000.0]))
    assert found == pytest.approx([0.25 * 0.49, 0.5 * 0.49, 0.75 * 0.85**2, 1.0])


def test_kernels_take_the_greater_of_arithmetic_and_memory_and_a_start():
    own = Parameters(compute_fp32=0.5, bandwidth=0.8, kernel_us=3.0)
    load = kernels.Load(np.array([2.0, 1.0]), np.array([7e9, 0.0]), np.array([1e6, 9e8]))
    top = GPU.max_clock_mhz
    found = kernels.busy(load, GPU, "fp32", own, np.array([[top], [top / 4]]))
    peak = GPU.peak_tflops["fp32"] * 1e12
    bandwidth = GPU.memory_bandwidth_gb_s * 1e9
    full = 2 * (3e-6 + 7e9 / (0.5 * peak)) + (3e-6 + 9e8 / (0.8 * bandwidth))
    # At a quarter of the clock the cache in front of the memory lets less through.
    cache = bandwidth * kernels.CACHE_OVER_MEMORY / 4
    slow = 2 * (12e-6 + 4 * 7e9 / (0.5 * peak)) + (12e-6 + 9e8 / (0.8 * cache))
    assert cache < bandwidth
    assert found.duration_s @ load.count == pytest.approx([full, slow])
    assert kernels.roofline_s(load, GPU, "fp32") == pytest.approx(2 * 7e9 / peak + 9e8 / bandwidth)


def only(load: kernels.Load, kind: int) -> kernels.Load:
    return kernels.Load(*(getattr(load, f.name)[[kind]] for f in fields(load)))


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("cap_w", [110.0, 150.0, 190.0])
def test_the_clock_of_a_kernel_under_a_cap_is_where_its_power_meets_it(cap_w, kind):
    load = only(LOAD, kind)
    board = Board(GPU, "fp32", Parameters(), power_limit_w=cap_w)
    free = Board(GPU, "fp32", Parameters())

    def over(mhz: float) -> float:
        return replace(free, clock_limit_mhz=mhz).run(load, 0.0).compute_w - cap_w

    exact = brentq(over, GPU.min_clock_mhz + 1, GPU.max_clock_mhz)
    found = board.run(load, 0.0)
    assert found.limited_share == 1
    assert found.clock_mhz == pytest.approx(exact, rel=1e-4)
    assert found.compute_w == pytest.approx(cap_w, rel=1e-3)


def test_a_cap_slows_only_the_kernels_that_need_more_and_so_the_mean_stays_below_it():
    """One kernel of arithmetic and one of memory, each half of the time."""
    peak, bandwidth = GPU.peak_tflops["fp32"] * 1e12, GPU.memory_bandwidth_gb_s * 1e9
    own = Parameters(kernel_us=0.0)
    both = kernels.Load(
        np.array([1.0, 1.0]),
        np.array([own.compute_fp32 * peak * 1e-3, 0.0]),
        np.array([0.0, own.bandwidth * bandwidth * 1e-3]),
    )
    free = Board(GPU, "fp32", own).run(both, 0.0)
    heavy, light = (Board(GPU, "fp32", own).run(only(both, kind), 0.0) for kind in (0, 1))
    assert free.compute_s == pytest.approx(2e-3)
    assert free.compute_w == pytest.approx((heavy.compute_w + light.compute_w) / 2)
    cap_w = (free.compute_w + heavy.compute_w) / 2  # above the mean, below the heavy kernel
    capped = Board(GPU, "fp32", own, power_limit_w=cap_w).run(both, 0.0)
    slowed = Board(GPU, "fp32", own, power_limit_w=cap_w).run(only(both, 0), 0.0)
    assert capped.compute_s == pytest.approx(slowed.compute_s + light.compute_s)
    assert capped.compute_w < free.compute_w < cap_w
    assert capped.limited_share == pytest.approx(slowed.compute_s / capped.compute_s)
    low = Board(GPU, "fp32", own, power_limit_w=GPU.min_limit_w).run(both, 0.0)
    assert low.compute_w == pytest.approx(GPU.min_limit_w, rel=1e-3)


def test_a_cap_below_what_the_least_clock_draws_is_kept_by_pauses():
    hungry, load = Parameters(power_memory=20.0), only(LOAD, 0)
    found = Board(GPU, "fp32", hungry, power_limit_w=100.0).run(load, 0.0)
    clocks = np.full(1, GPU.min_clock_mhz)
    draws_w, alone = Board(GPU, "fp32", hungry)._kernels(load, clocks)
    assert draws_w[0] > 100
    alone_s = float(alone.duration_s @ load.count)
    longer = (draws_w[0] - GPU.idle_w) / (100 - GPU.idle_w)
    assert found.compute_s == pytest.approx(alone_s * longer)
    assert found.compute_w == pytest.approx(100)
