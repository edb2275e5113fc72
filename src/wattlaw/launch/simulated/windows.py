"""The windows of a simulated run: a prediction's mean epoch with noise, one after the other.

Times and powers are the prediction's, times a log-normal factor whose mean is 1. A run is longer
or shorter as a whole (``run_spread``), and its windows among each other (the spread of a step's
time over the root of their number). Boards differ in power as they do in speed (``gpu_spread``),
the mean of N of them by 1 / sqrt(N) of that; those that a power limit holds draw what it lets
them. Energy is power times time.
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
from wattlaw.simulator.quality import epochs_to_target
from wattlaw.study.launching import Simulation
from wattlaw.study.model import Measure

if TYPE_CHECKING:
    import pyarrow as pa

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]

#: The metric of a run whose quality is simulated.
PROGRESS = "progress"
#: The simulated clock of every run begins here: 2020-01-01 00:00 UTC.
BEGIN_NS = 1_577_836_800 * 10**9
#: Standard deviations between the mean and the 95th percentile of a normal number.
_P95 = 1.6448536269514722


@dataclass(frozen=True)
class Windows:
    """The windows of a run in order of time; arrays of shape (windows,)."""

    prediction: Prediction
    epoch: Whole
    is_training: npt.NDArray[np.bool_]
    start_s: Floats  # since the run began
    duration_s: Floats
    stretch: Floats  # duration over the predicted one
    power: Floats  # of a GPU, over the predicted one

    @property
    def end_s(self) -> float:
        """Return when the last one ends."""
        return float(self.start_s[-1] + self.duration_s[-1])


def windows_of(prediction: Prediction, measure: Measure, draw: np.random.Generator) -> Windows:
    """Return the windows that a run was asked for, the same ones for the same generator."""
    kinds: list[Window] = [prediction.train]
    if measure.evaluate and prediction.evaluation is not None:
        kinds.append(prediction.evaluation)
    parameters = prediction.job.parameters
    of_run = _factors(draw, np.array(parameters.run_spread))
    sigmas = [prediction.step_cv / sqrt(max(1, one.steps)) for one in kinds]
    stretch = of_run * _factors(draw, np.tile(sigmas, measure.epochs))
    duration_s = stretch * np.tile([one.duration_s for one in kinds], measure.epochs)
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
    """Return the power of the boards that a run got over the predicted one, by kind of window.

    What a power limit holds draws what it lets it; what it does not hold stays below it.
    """
    job = prediction.job
    drawn = float(_factors(draw, np.array(job.parameters.gpu_spread / sqrt(job.gpus))))
    limit_w = job.power_limit_w or job.cluster.gpu.max_w
    most_w = [max(phase.power_w for phase in prediction.phases)]
    most_w += [one.gpu_power_w for one in kinds[1:]]
    return [
        1.0 if one.limited_by == "power_limit_w" else min(drawn, limit_w / most)
        for one, most in zip(kinds, most_w, strict=True)
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
    """Return the rows of ``epochs``: all nodes of a run as one host, energies summed over them.

    What the simulator does not know is null: the loss, power that is not of GPUs, CPU packages
    and memory, variation within an evaluation.
    """
    from wattlaw.store.schema import EPOCHS

    found, training, stretch = windows.prediction, windows.is_training, windows.stretch
    evaluation = found.evaluation or found.train
    count = len(stretch)

    def of(name: str) -> Floats:
        chosen: Floats = np.where(training, getattr(found.train, name), getattr(evaluation, name))
        return chosen

    def in_training(values: Floats | float | None) -> "pa.Array":
        if values is None:
            return numbers(np.zeros(count), np.zeros(count, dtype=bool))
        return numbers(np.broadcast_to(np.asarray(values), count), training)

    mean_s = found.split.step_s * stretch
    log_sigma = sqrt(log1p(found.step_cv**2))
    median_s = mean_s / sqrt(1 + found.step_cv**2)
    cycle, job = cycle_of(found), found.job
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
        "samples": numbers(of("samples")),
        "steps": numbers(np.full(count, found.train.steps), training),
        "step_time_mean_s": in_training(mean_s),
        "step_time_p50_s": in_training(median_s),
        "step_time_p95_s": in_training(median_s * np.exp(_P95 * log_sigma)),
        "step_time_cv": in_training(found.step_cv),
        "gpu_energy_j": numbers(of("gpu_energy_j") * stretch * windows.power),
        "cpu_energy_j": numbers(of("cpu_energy_j") * stretch),
        "dram_energy_j": numbers(of("dram_energy_j") * stretch),
        "energy_source": text("simulated", count),
        "energy_verdict": text("ok", count),
        "gpu_power_mean_w": numbers(of("gpu_power_w") * windows.power),
        "sm_util_mean": numbers(of("sm_util")),
        "sm_util_cv": in_training(cycle.sm_util_cv),
        "mem_util_mean": numbers(of("mem_util")),
        "mem_util_cv": in_training(cycle.mem_util_cv),
        "sm_clock_mean_mhz": in_training(found.clock_mhz),
        "power_limit_mean_w": numbers(np.full(count, limit_w)),
        "power_throttle_share": in_training(found.power_throttle_share),
    }
    return table(columns | _progress(windows, simulation), count, EPOCHS)


def nanoseconds(since_begin_s: Floats) -> Whole:
    """Return moments of a run on its simulated clock."""
    return BEGIN_NS + np.rint(since_begin_s * 1e9).astype(np.int64)


def _progress(windows: Windows, simulation: Simulation) -> dict[str, "pa.Array"]:
    """Return how far each evaluation finds training: the share of the epochs that it needs."""
    if simulation.critical_batch is None or simulation.epochs_to_target is None:
        return {}
    job = windows.prediction.job
    needed = epochs_to_target(
        job.global_batch, simulation.critical_batch, simulation.epochs_to_target
    )
    share = (windows.epoch + 1) * job.dataset_fraction / needed
    told = [json.dumps({PROGRESS: float(one)}) for one in share]
    return {
        "metric": numbers(share, ~windows.is_training),
        "metrics": texts(told, np.arange(len(told)), ~windows.is_training),
    }
