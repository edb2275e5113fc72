"""What physics and statistics fix of a simulated epoch, whatever the hardware and the setting."""

from dataclasses import replace
from math import isfinite

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from made_jobs import IDEAL, job, profile, with_links
from wattlaw.common.errors import BadInput
from wattlaw.hardware.library import cluster_names, read_cluster
from wattlaw.study.setting import Setting
from wattlaw_simulator.simulate_step import (
    MAX_LOADER_PROCESSES,
    deviation_of_maximum,
    expected_maximum,
    loader_processes,
    predict,
    slowest_over_mean,
    step_cv,
)
from wattlaw_simulator.simulated_job import Parameters, Prediction, SimulatedJob

#: Boards that not even their least clock keeps within a limit.
HUNGRY = Parameters(power_memory=20.0, power_busy=2.0)
CLUSTERS = {name: read_cluster(name) for name in cluster_names()}


@st.composite
def jobs(draw: st.DrawFn) -> SimulatedJob:
    """Return jobs over all hardware and settings that it allows."""
    cluster = CLUSTERS[draw(st.sampled_from(sorted(CLUSTERS)))]
    gpu = cluster.gpu
    made = profile(
        work_cv=draw(st.floats(0, 2)),
        stored_bytes_per_sample=draw(st.floats(0, 1e7)),
        input_cpu_s_per_sample=draw(st.floats(0, 0.1)),
        reads_files=draw(st.booleans()),
        gradient_bytes=draw(st.integers(1, 10**11)),
        layers=draw(st.integers(1, 10_000)),
    )
    return SimulatedJob(
        made,
        cluster,
        Setting(
            draw(st.integers(1, 100_000)),
            local_batch=draw(st.integers(1, 10_000)),
            precision=draw(st.sampled_from(sorted(gpu.peak_tflops))),
            power_limit_w=draw(st.none() | st.floats(gpu.min_limit_w, gpu.max_w)),
            clock_limit_mhz=draw(st.none() | st.floats(gpu.min_clock_mhz, gpu.max_clock_mhz)),
            dataset_fraction=draw(st.floats(0.01, 1)),
            gradient_accumulation=draw(st.integers(1, 100)),
        ),
        samples=draw(st.integers(100_000, 10**10)),
        evaluation_samples=draw(st.integers(0, 10**6)),
        bucket_mb=draw(st.floats(1e-6, 1e5)),
        loader_workers=draw(st.none() | st.integers(0, 64)),
        parameters=draw(st.sampled_from([Parameters(), IDEAL, HUNGRY])),
    )


def predicted(of: SimulatedJob) -> Prediction | None:
    """Return the prediction, or None where an epoch has no update."""
    try:
        return predict(of)
    except BadInput as error:
        assert "allowed: a sample for each GPU" in str(error)
        return None


def numbers(found: Prediction) -> list[float]:
    parts = filter(None, (found.train, found.evaluation, found.split))
    told = [value for part in parts for value in vars(part).values()]
    told = [one for one in told if not isinstance(one, str | None)]
    told += [found.startup_s, found.step_cv, found.clock_mhz, found.power_throttle_share]
    told += [x for p in found.phases for x in (p.duration_s, p.power_w, p.sm_util, p.mem_util)]
    return told


@given(jobs())
@settings(max_examples=300, deadline=None)
def test_every_prediction_is_finite_and_within_its_bounds(of):
    found = predicted(of)
    if found is None:
        return
    gpu = of.cluster.gpu
    assert all(isfinite(value) and value >= 0 for value in numbers(found))
    assert found.split.step_s >= found.roofline_s * (1 - 1e-9)
    assert 0 <= found.train.sm_util <= 1 + 1e-9
    assert 0 <= found.train.mem_util <= 1 + 1e-9
    limit_w = min(of.setting.power_limit_w or gpu.max_w, gpu.max_w)
    assert gpu.idle_w - 1e-9 <= found.train.gpu_power_w <= limit_w * (1 + 1e-9)
    assert gpu.min_clock_mhz - 1e-9 <= found.clock_mhz <= gpu.max_clock_mhz
    if of.setting.clock_limit_mhz:
        assert found.clock_mhz <= of.setting.clock_limit_mhz + 1e-9
    assert found.train.gpu_energy_j == pytest.approx(
        of.gpus * found.train.gpu_power_w * found.train.duration_s
    )


@given(jobs(), st.floats(0, 1), st.floats(0, 1))
@settings(max_examples=200, deadline=None)
def test_a_lower_cap_or_clock_is_never_faster(of, a, b):
    gpu = of.cluster.gpu
    low, high = sorted((a, b))
    for key, least, most in (
        ("power_limit_w", gpu.min_limit_w, gpu.max_w),
        ("clock_limit_mhz", gpu.min_clock_mhz, gpu.max_clock_mhz),
    ):
        limits = [least + share * (most - least) for share in (low, high)]
        settings = [replace(of.setting, **{key: limit}) for limit in limits]
        found = [predicted(replace(of, setting=setting)) for setting in settings]
        if all(found):
            lower, higher = (one.train.duration_s for one in found)
            # Between two of the clocks that are tried, one bisects to within a step's 4096th part.
            assert lower >= higher * (1 - 1e-3)


@given(st.sampled_from(sorted(CLUSTERS)), st.integers(0, 10))
@settings(max_examples=40, deadline=None)
def test_at_infinite_bandwidth_and_without_spread_beta_is_one(name, doublings):
    ideal = with_links(CLUSTERS[name], bandwidth_gb_s=1e30, latency_us=1e-30)
    alone, many = (
        predict(job(gpus, cluster=ideal, parameters=IDEAL, samples=64 * 2**14)).train.duration_s
        for gpus in (1, 2**doublings)
    )
    assert alone / many == pytest.approx(2**doublings, rel=1e-9)


def test_the_parts_of_an_update_are_those_of_a_case_worked_by_hand():
    found = predict(job(1, parameters=IDEAL, clock_limit_mhz=1380.0))
    gpu = found.job.cluster.gpu
    compute_s = 64 * 24e9 / (gpu.peak_tflops["fp32"] * 1e12)
    # Every kernel is bound by arithmetic (5e7 / 14e12 > 1.5e6 / 900e9), the steps by memory.
    step_s = 6 * 1e8 / 900e9
    assert found.roofline_s == pytest.approx(compute_s + step_s)
    if found.train.limited_by is None:
        assert found.split.compute_s == pytest.approx(compute_s + step_s)
    assert found.train.steps == 16_000
    assert found.split.communication_s == found.split.slowest_s == found.split.input_s == 0


def test_the_last_update_takes_what_is_left_and_is_dropped_below_one_sample_each():
    assert predict(job(4, samples=64 * 4 * 10 + 4)).train.steps == 11
    short = predict(job(4, samples=64 * 4 * 10 + 3)).train
    assert (short.steps, short.samples) == (10, 64 * 4 * 10)
    with pytest.raises(BadInput, match="gpus: given 8 for 7 samples"):
        predict(job(8, samples=7))


def test_input_that_is_too_slow_is_waited_for_and_shared_storage_ends_scaling():
    cluster = read_cluster("mit-v100")
    slow = profile(stored_bytes_per_sample=5e5, input_cpu_s_per_sample=0.0)
    few, many, more = (
        predict(job(n, profile=slow, samples=64 * 1000 * 1024)) for n in (2, 512, 1024)
    )
    assert few.split.input_s == 0 < many.split.input_s + more.split.input_s
    rate = more.train.samples / more.train.duration_s
    assert rate <= cluster.storage_gb_s * 1e9 / 5e5 * (1 + 1e-9)
    inline = profile(input_cpu_s_per_sample=1e-3, reads_files=False)
    assert predict(job(1, profile=inline)).split.input_s == pytest.approx(64e-3)


def test_loader_processes_are_as_many_as_the_loop_starts():
    from wattlaw.workloads.data_loading import _MOST_WORKERS

    assert MAX_LOADER_PROCESSES == _MOST_WORKERS
    lone = profile(input_cpu_s_per_sample=0.1)
    busy = predict(job(1, profile=lone, cluster=CLUSTERS["kit-a100"]))
    # One rank on a node has the cores of all: eight processes, the most there are.
    assert busy.split.input_s + busy.split.compute_s == pytest.approx(64 * 0.1 / 8, rel=0.01)
    # A rank without a core to spare has one, as it mostly waits for its GPU.
    node = CLUSTERS["kit-a100"].node.model_copy(update={"cores": 4})
    scarce = CLUSTERS["kit-a100"].model_copy(update={"node": node})
    assert loader_processes(job(4, cluster=scarce)) == 1
    assert loader_processes(job(4, cluster=scarce, loader_workers=0)) == 0
    assert loader_processes(job(4, profile=profile(reads_files=False))) == 0


@pytest.mark.parametrize("count", [2, 3, 4, 8, 16, 100, 424, 10_000])
def test_the_expected_maximum_agrees_with_its_integral(count):
    """E max = integral of x d(Phi(x)^n)."""

    def density(x: float) -> float:
        return float(x * count * stats.norm.pdf(x) * stats.norm.cdf(x) ** (count - 1))

    exact, _ = integrate.quad(density, -10, 10, limit=200)
    assert expected_maximum(count) == pytest.approx(exact, abs=0.026)


def test_the_slowest_of_drawn_ranks_agrees():
    own = Parameters(step_spread=0.03, gpu_spread=0.02)
    dice = np.random.default_rng(1)
    boards = dice.normal(1, 0.02, (2000, 64))
    drawn = (boards + dice.normal(0, 0.03, (2000, 64))).max(axis=1).mean()
    assert slowest_over_mean(own, 0.0, 1, 64) == pytest.approx(drawn, rel=2e-3)


def test_samples_of_different_size_even_out_in_a_batch():
    dice = np.random.default_rng(2)
    work = dice.gamma(4, 0.25, (20_000, 128))  # mean 1, deviation 0.5
    drawn = work.mean(axis=1).std()
    assert step_cv(Parameters(step_spread=0.0), 0.5, 128) == pytest.approx(drawn, rel=0.02)


@pytest.mark.parametrize("count", [1, 2, 8, 64, 424])
def test_the_deviation_of_the_maximum_agrees_with_draws(count):
    drawn = np.random.default_rng(3).standard_normal((40_000, count)).max(axis=1).std()
    assert deviation_of_maximum(count) == pytest.approx(drawn, rel=0.04)
