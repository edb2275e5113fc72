"""The windows of a simulated run: the predicted mean epoch with noise.

Times and powers are the prediction's, multiplied by log-normal factors of mean 1. The time of a run
varies by ``run_spread``, the time of its windows by the spread of a step over the square root of
the number of steps. The power of boards varies as their speed (``gpu_spread``), and their mean over
N boards by 1 / sqrt(N) of it; boards at their power limit draw that limit. Energy is power x time.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import log1p, sqrt
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from wattlaw.launch.simulated.columns import flags, numbers, table, text, texts
from wattlaw.launch.simulated.signal import cycle_of
from wattlaw.simulator.job import Prediction, Window
from wattlaw.simulator.what_if import Target
from wattlaw.study.launching import Simulation
from wattlaw.study.model import Measure

if TYPE_CHECKING:
    import pyarrow as pa

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

#: The metric of a run whose quality is simulated.
PROGRESS = "progress"
#: The begin of every run on the simulated clock: 2020-01-01 00:00 UTC.
BEGIN_NS = 1_577_836_800 * 10**9
#: The 95th percentile of the standard normal distribution.
_P95 = 1.6448536269514722


@dataclass(frozen=True)
class Windows:
    """The windows of a run in order of time; arrays of shape (windows,)."""

    prediction: Prediction
    epoch: Integers
    is_training: npt.NDArray[np.bool_]
    start_s: Floats  # since the run began
    duration_s: Floats
    stretch: Floats  # duration / predicted duration
    power: Floats  # power of a GPU / predicted power

    @property
    def end_s(self) -> float:
        """Return the end of the last window."""
        return float(self.start_s[-1] + self.duration_s[-1])


def windows_of(prediction: Prediction, measure: Measure, draw: np.random.Generator) -> Windows:
    """Return the windows of a run; the same generator gives the same windows."""
    kinds: list[Window] = [prediction.train]
    if measure.evaluate and prediction.evaluation is not None:
        kinds.append(prediction.evaluation)
    parameters = prediction.job.parameters
    run_factor = _factors(draw, np.array(parameters.run_spread))
    sigmas = [prediction.step_cv / sqrt(max(1, kind.steps)) for kind in kinds]
    stretch = run_factor * _factors(draw, np.tile(sigmas, measure.epochs))
    duration_s = stretch * np.tile([kind.duration_s for kind in kinds], measure.epochs)
    return Windows(
        prediction,
        epoch=np.repeat(np.arange(measure.epochs), len(kinds)),
        is_training=np.tile([True, False][: len(kinds)], measure.epochs),
        start_s=np.cumsum(duration_s) - duration_s,
        duration_s=duration_s,
        stretch=stretch,
        power=np.tile(_powers(prediction, kinds, draw), measure.epochs),
    )


def _powers(
    prediction: Prediction, kinds: Sequence[Window], draw: np.random.Generator
) -> list[float]:
    """Return the power of the run's boards relative to the prediction, by kind of window.

    Windows that are limited by the power limit have exactly that power; others stay below it.
    """
    job = prediction.job
    drawn = float(_factors(draw, np.array(job.parameters.gpu_spread / sqrt(job.gpus))))
    limit_w = job.power_limit_w or job.cluster.gpu.max_w
    most_w = [max(phase.power_w for phase in prediction.phases)]
    most_w += [kind.gpu_power_w for kind in kinds[1:]]
    return [
        1.0 if kind.limited_by == "power_limit_w" else min(drawn, limit_w / most)
        for kind, most in zip(kinds, most_w, strict=True)
    ]


def _factors(draw: np.random.Generator, sigma: Floats) -> Floats:
    """Return log-normal factors of mean 1 and relative standard deviations ``sigma``."""
    log_variance = np.log1p(sigma**2)
    normal = draw.standard_normal(np.shape(sigma))
    factors: Floats = np.exp(normal * np.sqrt(log_variance) - log_variance / 2)
    return factors


def epochs_table(
    windows: Windows, run_id: str, host: str, measure: Measure, simulation: Simulation
) -> "pa.Table":
    """Return the rows of ``epochs``: all nodes of a run as one host with their total energy.

    Columns that the simulator does not predict are null: the loss, the power of other components,
    variation within an evaluation.
    """
    from wattlaw.store.schema import EPOCHS

    prediction, training, stretch = windows.prediction, windows.is_training, windows.stretch
    train, evaluation = prediction.train, prediction.evaluation or prediction.train
    count = len(stretch)

    def by_phase(name: str) -> Floats:
        values: Floats = np.where(training, getattr(train, name), getattr(evaluation, name))
        return values

    def in_training(values: Floats | float | None) -> "pa.Array":
        if values is None:
            return numbers(np.zeros(count), np.zeros(count, dtype=bool))
        return numbers(np.broadcast_to(np.asarray(values), count), training)

    mean_s = prediction.split.step_s * stretch
    log_sigma = sqrt(log1p(prediction.step_cv**2))
    median_s = mean_s / sqrt(1 + prediction.step_cv**2)
    cycle, job = cycle_of(prediction), prediction.job
    limit_w = job.power_limit_w or job.cluster.gpu.max_w
    columns = {
        "run_id": text(run_id, count),
        "host": text(host, count),
        "epoch": numbers(windows.epoch),
        "phase": texts(("evaluate", "train"), training.astype(np.int64)),
        "warmup": flags(windows.epoch < measure.warmup_epochs),
        "start_ns": numbers(nanoseconds(windows.start_s)),
        "duration_s": numbers(windows.duration_s),
        "interrupted": flags(np.zeros(count, dtype=bool)),
        "from_step": numbers(np.zeros(count, dtype=np.int64)),
        "samples": numbers(by_phase("samples")),
        "steps": numbers(np.full(count, train.steps), training),
        "step_time_mean_s": in_training(mean_s),
        "step_time_p50_s": in_training(median_s),
        "step_time_p95_s": in_training(median_s * np.exp(_P95 * log_sigma)),
        "step_time_cv": in_training(prediction.step_cv),
        "gpu_energy_j": numbers(by_phase("gpu_energy_j") * stretch * windows.power),
        "cpu_energy_j": numbers(by_phase("cpu_energy_j") * stretch),
        "dram_energy_j": numbers(by_phase("dram_energy_j") * stretch),
        "energy_source": text("simulated", count),
        "energy_verdict": text("ok", count),
        "gpu_power_mean_w": numbers(by_phase("gpu_power_w") * windows.power),
        "sm_util_mean": numbers(by_phase("sm_util")),
        "sm_util_cv": in_training(cycle.sm_util_cv),
        "mem_util_mean": numbers(by_phase("mem_util")),
        "mem_util_cv": in_training(cycle.mem_util_cv),
        "sm_clock_mean_mhz": in_training(prediction.clock_mhz),
        "power_limit_mean_w": numbers(np.full(count, limit_w)),
        "power_throttle_share": in_training(prediction.power_throttle_share),
    }
    return table(columns | _progress(windows, simulation), count, EPOCHS)


def nanoseconds(since_begin_s: Floats) -> Integers:
    """Return times of a run on the simulated clock, in ns since 1970."""
    return BEGIN_NS + np.rint(since_begin_s * 1e9).astype(np.int64)


def _progress(windows: Windows, simulation: Simulation) -> dict[str, "pa.Array"]:
    """Return the progress at each evaluation, as a share of the epochs to the target."""
    if simulation.critical_batch is None or simulation.epochs_to_target is None:
        return {}
    job = windows.prediction.job
    target = Target(simulation.epochs_to_target, simulation.critical_batch)
    needed = target.epochs(job.global_batch)
    share = (windows.epoch + 1) * job.dataset_fraction / needed
    metrics = [json.dumps({PROGRESS: float(value)}) for value in share]
    return {
        "metric": numbers(share, ~windows.is_training),
        "metrics": texts(metrics, np.arange(len(metrics)), ~windows.is_training),
    }
