"""The power of a simulated GPU and the clock under a cap, against a search of another kind."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from made_jobs import profile
from wattlaw.simulator import kernels
from wattlaw.simulator.job import Parameters
from wattlaw.simulator.library import cluster_names, read_cluster
from wattlaw.simulator.power import Board, switching

BOARDS = {name: read_cluster(name).gpu for name in cluster_names()}
GPU = BOARDS["mit-v100"]
LOAD = kernels.kernel_load(profile(), ("forward", "backward", "optimizer"), 64, "fp32")
board_names = st.sampled_from(sorted(BOARDS))


def test_switching_power_is_clock_times_voltage_squared() -> None:
    gpu = GPU.model_copy(
        update={"min_clock_mhz": 100.0, "knee_clock_mhz": 500.0, "max_clock_mhz": 1000.0,
                "least_voltage": 0.7}
    )  # fmt: skip
    found = switching(gpu, np.array([250.0, 500.0, 750.0, 1000.0]))
    assert found == pytest.approx([0.25 * 0.49, 0.5 * 0.49, 0.75 * 0.85**2, 1.0])


@given(board_names, st.floats(0, 1), st.floats(0, 1))
def test_a_higher_clock_switches_more(name: str, a: float, b: float) -> None:
    gpu = BOARDS[name]
    low, high = sorted((a, b))
    clocks = gpu.min_clock_mhz + np.array([low, high]) * (gpu.max_clock_mhz - gpu.min_clock_mhz)
    less, more = switching(gpu, clocks)
    assert 0 < less <= more <= 1 + 1e-12


def test_kernels_take_the_greater_of_arithmetic_and_memory_and_a_start() -> None:
    own = Parameters(compute_fp32=0.5, bandwidth=0.8, kernel_us=3.0)
    load = kernels.Load(np.array([2.0, 1.0]), np.array([7e9, 0.0]), np.array([1e6, 9e8]))
    top = GPU.max_clock_mhz
    found = kernels.busy(load, GPU, "fp32", own, np.array([top, top / 4]))
    peak = GPU.peak_tflops["fp32"] * 1e12
    bandwidth = GPU.memory_bandwidth_gb_s * 1e9
    full = 2 * (3e-6 + 7e9 / (0.5 * peak)) + (3e-6 + 9e8 / (0.8 * bandwidth))
    # At a quarter of the clock the cache in front of the memory lets less through.
    cache = bandwidth * kernels.CACHE_OVER_MEMORY / 4
    slow = 2 * (12e-6 + 4 * 7e9 / (0.5 * peak)) + (12e-6 + 9e8 / (0.8 * cache))
    assert cache < bandwidth
    assert found.duration_s == pytest.approx([full, slow])
    assert kernels.roofline_s(load, GPU, "fp32") == pytest.approx(2 * 7e9 / peak + 9e8 / bandwidth)


@pytest.mark.parametrize("cap_w", [110.0, 150.0, 200.0])
def test_the_clock_under_a_cap_is_where_power_meets_it(cap_w: float) -> None:
    board = Board(GPU, "fp32", Parameters(), power_limit_w=cap_w)
    free = Board(GPU, "fp32", Parameters())

    def over(mhz: float) -> float:
        return replace(free, clock_limit_mhz=mhz).run(LOAD, 0.0).compute_w - cap_w

    exact = brentq(over, GPU.min_clock_mhz + 1, GPU.max_clock_mhz)
    found = board.run(LOAD, 0.0)
    assert found.limited_by == "power_limit_w"
    assert found.clock_mhz == pytest.approx(exact, rel=1e-4)
    assert found.compute_w == pytest.approx(cap_w, rel=1e-3)


def test_a_cap_below_what_the_least_clock_draws_is_kept_by_pauses() -> None:
    hungry = Parameters(power_memory=20.0)
    board = Board(GPU, "fp32", hungry, power_limit_w=100.0)
    found = board.run(LOAD, 0.0)
    unpaused = Board(GPU, "fp32", hungry, clock_limit_mhz=GPU.min_clock_mhz)
    alone = kernels.busy(LOAD, GPU, "fp32", hungry, np.array([GPU.min_clock_mhz]))
    draws_w = unpaused._compute_w(alone, np.array([GPU.min_clock_mhz]))[0]
    assert draws_w > 100
    took_s = found.compute_s + found.launch_s
    assert found.compute_s == pytest.approx(float(alone.duration_s[0]))
    assert took_s == pytest.approx(found.compute_s * (draws_w - GPU.idle_w) / (100 - GPU.idle_w))
    energy_j = found.compute_w * found.compute_s + board.awake_w(found.clock_mhz) * found.launch_s
    assert energy_j == pytest.approx(100 * took_s)


@given(board_names, st.floats(0, 1), st.floats(0, 0.5))
@settings(max_examples=60, deadline=None)
def test_mean_power_never_exceeds_the_cap(name: str, share: float, host_s: float) -> None:
    gpu = BOARDS[name]
    cap_w = gpu.min_limit_w + share * (gpu.max_w - gpu.min_limit_w)
    board = Board(gpu, "fp16", Parameters(), power_limit_w=cap_w)
    point = board.run(LOAD, host_s)
    energy_j = point.compute_w * point.compute_s + board.awake_w(point.clock_mhz) * point.launch_s
    assert energy_j <= cap_w * (point.compute_s + point.launch_s) * (1 + 1e-9)
    assert board.communication_w(point.clock_mhz) <= cap_w
