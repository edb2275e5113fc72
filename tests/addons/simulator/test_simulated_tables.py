"""The tables of a simulated run: times, energies and samples that follow from a prediction."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from made_jobs import job as made_job
from made_jobs import profile
from wattlaw.hardware import library
from wattlaw.running.launcher import VIRTUAL_BEGIN_NS
from wattlaw.store.schema import EPOCHS, TELEMETRY
from wattlaw.study.launching import Simulation
from wattlaw.study.model import Measure, WorkloadSpec
from wattlaw.workloads import catalogue
from wattlaw_simulator.launching.simulated_tables import (
    MAX_SAMPLES,
    UTIL_AVERAGE_S,
    Sampling,
    cycle_of,
    epochs_table,
    telemetry_table,
    windows_of,
)
from wattlaw_simulator.simulate_step import predict
from wattlaw_simulator.simulated_job import Phase, Prediction, Split, Window

DIGITS = WorkloadSpec(name="digits-cnn")
V100 = library.read_cluster("mit-v100")


def job(**changes):
    given = {"local_batch": 4, "samples": 1437, "evaluation_samples": 360}
    given |= {"profile": catalogue.profile(DIGITS), "cluster": V100, "gpus": 8}
    return made_job(**given | changes)


def made(*phases: Phase, steps: int = 1000, startup_s: float = 0.0, **changes) -> Prediction:
    step_s = sum(one.duration_s for one in phases)
    duration_s = startup_s + steps * step_s
    means = {
        name: steps * sum(one.duration_s * getattr(one, name) for one in phases) / duration_s
        for name in ("power_w", "sm_util", "mem_util")
    }
    start_w = 50.0
    power_w = means["power_w"] + start_w * startup_s / duration_s
    of = job(**changes)
    train = Window(
        duration_s, 1437, steps, of.gpus * power_w * duration_s, duration_s * 100.0,
        duration_s * 10.0, power_w, means["sm_util"], means["mem_util"], None,
    )  # fmt: skip
    evaluation = dataclasses.replace(train, duration_s=1.0, gpu_power_w=60.0, sm_util=0.5)
    return Prediction(
        job=of, split=Split(step_s, 0.0, 0.0, 0.0, 0.0), phases=phases, roofline_s=0.0,
        startup_s=startup_s, step_cv=0.1, clock_mhz=1000.0, bottleneck="compute",
        power_throttle_share=0.0,
        train=train, evaluation=evaluation,
    )  # fmt: skip


WORK, WAIT = Phase(0.3, 200.0, 1.0, 0.4), Phase(0.1, 60.0, 0.0, 0.0)


def tables(prediction, seed=0, sample_hz=10.0, simulation=None, **measure):
    """Return epochs and telemetry of a run, made in this process."""
    asked = Measure(epochs=measure.pop("epochs", 5), **measure)
    draw = np.random.default_rng(seed)
    windows = windows_of(prediction, asked, draw)
    sampling = Sampling.of(windows, sample_hz, 2, draw)
    return (
        epochs_table(windows, "run", "sim0001", simulation or Simulation()),
        telemetry_table(windows, sampling, "run", "sim0001", ["SIM-0001-0", "SIM-0001-1"], draw),
    )


def test_utilisation_is_that_of_the_last_sixth_of_a_second():
    cycle = cycle_of(made(Phase(0.1, 1.0, 1.0, 0.0), Phase(0.1, 1.0, 0.0, 0.0)))
    moments = np.linspace(0, 0.2, 2001)
    told = cycle.averaged(cycle.sm_util, moments, UTIL_AVERAGE_S)
    # Of 1/6 s, the board is busy 0.1 s, but for the 0.2 - 1/6 s that a sample does not see.
    assert told.max() == pytest.approx(0.1 * 6)
    assert told.min() == pytest.approx((0.1 - (0.2 - 1 / 6)) * 6)
    assert told.mean() == pytest.approx(0.5, rel=1e-3)


def test_samples_have_the_means_and_the_variation_that_the_windows_say():
    prediction = made(WORK, WAIT, startup_s=40.0)
    epochs, telemetry = tables(prediction, epochs=20, evaluate=False)
    samples = telemetry.to_pandas()
    window = epochs.to_pandas().iloc[0]
    assert len(samples) == MAX_SAMPLES
    # Standard errors: of n samples sd / sqrt(n); 4 of them.
    for column, mean in (("sm_util", window.sm_util_mean), ("mem_util", window.mem_util_mean),
                         ("power_w", window.gpu_power_mean_w)):  # fmt: skip
        error = samples[column].std() / np.sqrt(len(samples))
        assert samples[column].mean() == pytest.approx(mean, abs=4 * error)
    cv = samples.sm_util.std() / samples.sm_util.mean()
    assert cv == pytest.approx(window.sm_util_cv, rel=0.1)


def test_telemetry_is_thinned_evenly_over_all_windows_and_stays_on_the_grid_of_sample_hz():
    epochs, telemetry = tables(made(WORK, WAIT), epochs=20)
    samples, windows = telemetry.to_pandas(), epochs.to_pandas()
    assert len(samples) == MAX_SAMPLES
    for _, one in samples.groupby("device"):
        apart = np.diff(one.t_ns) / 1e8
        assert (apart > 0.5).all()
        assert np.allclose(apart, np.rint(apart), atol=1e-4)
    each = np.histogram(samples.t_ns, [*windows.start_ns, windows.start_ns.max() * 2])[0]
    training = windows.duration_s > 10
    share = windows.duration_s / windows.duration_s.sum() * len(samples)
    assert np.allclose(each[training], share[training], atol=2.5)


def test_windows_follow_each_other_from_2020_on_and_say_what_they_are():
    epochs, telemetry = tables(made(WORK, WAIT), epochs=3, warmup_epochs=1)
    rows = epochs.to_pandas()
    assert epochs.schema == EPOCHS
    assert telemetry.schema == TELEMETRY
    assert rows.start_ns[0] == VIRTUAL_BEGIN_NS
    ends = rows.start_ns + rows.duration_s * 1e9
    assert np.allclose(rows.start_ns[1:] - ends[:-1].to_numpy(), 0, atol=1e4)
    assert list(zip(rows.epoch, rows.phase, rows.warmup, strict=True)) == [
        (epoch, phase, epoch == 0) for epoch in range(3) for phase in ("train", "evaluate")
    ]
    assert set(rows.energy_source) == {"simulated"}
    assert rows.loss.isna().all()
    assert rows.gpu_energy_counter_j.isna().all()
    assert rows.steps[rows.phase == "evaluate"].isna().all()


def test_noise_has_the_mean_1_and_the_spreads_of_the_parameters():
    prediction = made(WORK, WAIT, steps=100)
    runs = [tables(prediction, seed, epochs=20, evaluate=False)[0].to_pandas().duration_s
            for seed in range(150)]  # fmt: skip
    ratio = np.array(runs) / prediction.train.duration_s
    spread = prediction.job.parameters.run_spread
    assert ratio.mean() == pytest.approx(1, abs=4 * spread / np.sqrt(150))
    assert ratio.mean(axis=1).std() == pytest.approx(np.hypot(spread, 0.01 / np.sqrt(20)), rel=0.2)
    assert np.mean(ratio.std(axis=1, ddof=1)) == pytest.approx(0.1 / np.sqrt(100), rel=0.1)


def test_progress_is_the_share_of_the_epochs_that_the_batch_needs():
    simulation = Simulation(critical_batch=32.0, epochs_to_target=10.0)  # 10 (1 + 32/32) = 20
    epochs, _ = tables(made(WORK, WAIT), simulation=simulation, epochs=4)
    rows = epochs.to_pandas()
    assert rows.metric[rows.phase == "train"].isna().all()
    found = rows[rows.phase == "evaluate"]
    assert list(found.metric) == pytest.approx([0.05, 0.1, 0.15, 0.2])
    assert [json.loads(text)["progress"] for text in found.metrics] == list(found.metric)


@settings(max_examples=40)
@given(
    gpus=st.integers(1, 500),
    local_batch=st.integers(1, 512),
    limit_w=st.none() | st.floats(100, 250),
    clock_mhz=st.none() | st.floats(135, 1380),
    seed=st.integers(0, 2**31),
)
def test_tables_are_finite_and_a_cap_is_never_exceeded(gpus, local_batch, limit_w, clock_mhz, seed):
    prediction = predict(job(gpus=gpus, local_batch=local_batch, samples=10**5,
                             power_limit_w=limit_w, clock_limit_mhz=clock_mhz))  # fmt: skip
    epochs, telemetry = tables(prediction, seed, epochs=2)
    for table in (epochs.drop_columns(["metric"]), telemetry):
        for name, column in zip(table.column_names, table.columns, strict=True):
            if str(column.type) == "double":
                known = column.drop_null().to_numpy()
                assert np.isfinite(known).all(), name
                assert (known >= 0).all(), name
    for name in ("sm_util_mean", "mem_util_mean"):
        assert max(epochs[name].to_pylist()) <= 1
    most_w = (limit_w or V100.gpu.max_w) * (1 + 1e-9)
    assert max(epochs["gpu_power_mean_w"].to_pylist()) <= most_w
    if len(telemetry):
        assert max(telemetry["power_w"].to_pylist()) <= most_w
        assert max(telemetry["sm_util"].to_pylist()) <= 1 + 1e-9


def test_power_varies_outside_the_time_at_the_limit():
    """A limit acts on single kernels: the mean of kernels and waits for input is below it."""
    waits = profile(input_cpu_s_per_sample=0.05)
    found = predict(made_job(1, profile=waits, power_limit_w=150.0, samples=64_000))
    assert found.train.limited_by == "power_limit_w"
    assert 0 < found.power_throttle_share < 0.9
    epochs = [tables(found, seed, epochs=2)[0] for seed in range(5)]
    powers_w = {table["gpu_power_mean_w"][0].as_py() for table in epochs}
    assert len(powers_w) > 2
