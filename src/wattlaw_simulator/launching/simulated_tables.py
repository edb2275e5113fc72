"""The tables of a simulated run: the predicted mean epoch with noise, and readings of its boards.

Times and powers are the prediction's, multiplied by log-normal factors of mean 1. The time of a run
varies by ``run_spread``, the time of its windows by the spread of a step over the square root of
the number of steps. The power of boards varies as their speed (``gpu_spread``), and their mean over
N boards by 1 / sqrt(N) of it, but not while they are at their power limit. Energy is power x time.

Telemetry is thinned by stratified sampling: the readings of a run are divided into equal parts, and
one reading is drawn from each. Every window has its share, without aliasing. Utilisation is the
average over the last sixth of a second (NVML: a sample period is between 1/6 s and 1 s,
``nvmlDeviceGetUtilizationRates``), power over a tenth (assumed: boards refresh it every 10 to
100 ms). Readings have a uniformly random phase.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, log1p, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wattlaw.running.launcher import VIRTUAL_BEGIN_NS
from wattlaw.store.schema import EPOCHS, TELEMETRY
from wattlaw.study.launching import Simulation
from wattlaw.study.model import Measure
from wattlaw_simulator.simulated_job import Prediction, Window

Flags = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

#: The metric of a run whose quality is simulated.
PROGRESS = "progress"
#: Samples of a run, over its boards.
MAX_SAMPLES = 2000
UTIL_AVERAGE_S = 1 / 6
POWER_AVERAGE_S = 0.1
#: Moments of a step from which its variation is computed.
_MOMENTS = 512
#: The 95th percentile of the standard normal distribution.
_P95 = 1.6448536269514722


def table(columns: Mapping[str, Any], count: int, schema: pa.Schema) -> pa.Table:
    arrays = []
    for name, kind in zip(schema.names, schema.types, strict=True):
        # A data frame would take three times as long.
        values = np.broadcast_to(np.asarray(columns.get(name)), count)
        arrays.append(pa.array(values, kind, from_pandas=True))
    return pa.Table.from_arrays(arrays, schema=schema)


@dataclass(frozen=True)
class Cycle:
    """The signal of a step, piecewise constant; arrays of shape (pieces,)."""

    duration_s: Floats
    power_w: Floats
    sm_util: Floats
    mem_util: Floats
    #: The share of the window before the first step, in which boards wait for samples.
    start_share: float
    start_w: float

    def averaged(self, values: Floats, moments: Floats, over_s: float) -> Floats:
        ends_s = np.concatenate([[0.0], np.cumsum(self.duration_s)])
        sums = np.concatenate([[0.0], np.cumsum(self.duration_s * values)])

        def integral(t_s: Floats) -> Floats:
            steps, rest = np.divmod(t_s, ends_s[-1])
            total: Floats = steps * sums[-1] + np.interp(rest, ends_s, sums)
            return total

        means: Floats = (integral(moments + over_s) - integral(moments)) / over_s
        return means

    def util_cv(self, values: Floats) -> float | None:
        moments = (np.arange(_MOMENTS) + 0.5) / _MOMENTS * self.duration_s.sum()
        readings = self.averaged(values, moments, UTIL_AVERAGE_S)
        training = 1 - self.start_share
        mean = float(readings.mean()) * training
        square = float((readings**2).mean()) * training
        return sqrt(max(0.0, square - mean**2)) / mean if mean > 0 else None


def cycle_of(prediction: Prediction) -> Cycle:
    """Return the step, and a begin with which the window has the predicted energy."""
    pieces = _pieces(prediction)
    duration_s, power_w, sm_util, mem_util = pieces[pieces[:, 0] > 0].T
    train, job = prediction.train, prediction.job
    share = min(1.0, prediction.startup_s / train.duration_s)
    mean_w = float((duration_s * power_w).sum() / duration_s.sum())
    start_w = (train.gpu_power_w - mean_w * (1 - share)) / share if share > 0 else 0.0
    start_w = min(max(start_w, job.cluster.gpu.idle_w), job.limit_w)
    return Cycle(duration_s, power_w, sm_util, mem_util, share, start_w)


def _pieces(prediction: Prediction) -> Floats:
    return np.array([(p.duration_s, p.power_w, p.sm_util, p.mem_util) for p in prediction.phases])


@dataclass(frozen=True)
class Windows:
    """The windows of a run in order of time, arrays of shape (windows,): one of each of ``kinds``
    in an epoch, or in a run that is measured by steps."""

    prediction: Prediction
    measure: Measure
    kinds: tuple[Window, ...]
    epoch: Integers
    is_training: Flags
    start_s: Floats  # since the run began
    duration_s: Floats
    stretch: Floats  # duration / predicted duration
    power: Floats  # power of a GPU / predicted power

    @cached_property
    def cycle(self) -> Cycle:
        """Return the step; blocks of steps do not have the begin of an epoch."""
        cycle = cycle_of(self.prediction)
        return replace(cycle, start_share=0.0) if self.measure.is_by_steps else cycle

    def of_kind(self, name: str) -> npt.NDArray[Any]:
        values = [getattr(kind, name) for kind in self.kinds]
        return np.tile(values, len(self.stretch) // len(self.kinds))

    @property
    def end_s(self) -> float:
        return float(self.start_s[-1] + self.duration_s[-1])


def windows_of(prediction: Prediction, measure: Measure, draw: np.random.Generator) -> Windows:
    kinds, repeats = [prediction.train], measure.epoch_count
    if measure.is_by_steps:
        steps = measure.steps or ceil((measure.seconds or 0.0) / prediction.split.step_s)
        counts = [count for count in (measure.warmup_steps, steps) if count]
        kinds, repeats = [_block(prediction, count) for count in counts], 1
    elif measure.evaluate and prediction.evaluation is not None:
        kinds.append(prediction.evaluation)
    is_training = [kind is not prediction.evaluation for kind in kinds]
    run_factor = _factors(draw, np.array(prediction.job.parameters.run_spread))
    sigmas = [prediction.step_cv / sqrt(max(1, kind.steps)) for kind in kinds]
    stretch = run_factor * _factors(draw, np.tile(sigmas, repeats))
    duration_s = stretch * np.tile([kind.duration_s for kind in kinds], repeats)
    return Windows(
        prediction,
        measure,
        tuple(kinds),
        epoch=np.repeat(np.arange(repeats), len(kinds)),
        is_training=np.tile(is_training, repeats),
        start_s=np.cumsum(duration_s) - duration_s,
        duration_s=duration_s,
        stretch=stretch,
        power=np.tile(_powers(prediction, kinds, draw), repeats),
    )


def _block(prediction: Prediction, steps: int) -> Window:
    """Return the prediction for a block of steps, which all have the full batch."""
    train, job, pieces = prediction.train, prediction.job, _pieces(prediction)
    power_w, sm_util, mem_util = pieces[:, 0] @ pieces[:, 1:] / pieces[:, 0].sum()
    duration_s = steps * prediction.split.step_s
    return replace(
        train,
        duration_s=duration_s,
        samples=steps * job.global_batch,
        steps=steps,
        gpu_energy_j=job.gpus * power_w * duration_s,
        cpu_energy_j=train.cpu_energy_j / train.duration_s * duration_s,
        dram_energy_j=train.dram_energy_j / train.duration_s * duration_s,
        gpu_power_w=power_w,
        sm_util=sm_util,
        mem_util=mem_util,
    )


def _powers(
    prediction: Prediction, kinds: Sequence[Window], draw: np.random.Generator
) -> list[float]:
    """Return power over predicted power, by kind of window; exact in the time at the limit."""
    job = prediction.job
    drawn = float(_factors(draw, np.array(job.parameters.gpu_spread / sqrt(job.gpus))))
    peak_w = max(phase.power_w for phase in prediction.phases)
    varied = 1 + (drawn - 1) * (1 - prediction.power_throttle_share)
    most_w = [kind.gpu_power_w if kind is prediction.evaluation else peak_w for kind in kinds]
    return [min(varied, job.limit_w / most) for most in most_w]


def _factors(draw: np.random.Generator, sigma: Floats) -> Floats:
    """Return log-normal factors of mean 1 and relative standard deviations ``sigma``."""
    log_variance = np.log1p(sigma**2)
    normal = draw.standard_normal(np.shape(sigma))
    return np.exp(normal * np.sqrt(log_variance) - log_variance / 2)


def epochs_table(windows: Windows, run_id: str, host: str, simulation: Simulation) -> pa.Table:
    """Return ``epochs``, all nodes as one host; what the simulator does not predict is null."""
    prediction, training, stretch = windows.prediction, windows.is_training, windows.stretch
    measure, by_phase, count = windows.measure, windows.of_kind, len(stretch)
    steps = by_phase("steps")
    begins = np.cumsum(steps) - steps  # of blocks, in their run
    warmup = windows.epoch < measure.warmup_epochs
    if measure.is_by_steps:
        warmup = begins < measure.warmup_steps

    def in_training(values: npt.NDArray[Any] | float | None) -> Floats:
        return np.where(training, math.nan if values is None else values, math.nan)

    mean_s = prediction.split.step_s * stretch
    log_sigma = sqrt(log1p(prediction.step_cv**2))
    median_s = mean_s / sqrt(1 + prediction.step_cv**2)
    cycle, job, split = windows.cycle, prediction.job, prediction.split
    columns = {
        "run_id": run_id,
        "host": host,
        "epoch": None if measure.is_by_steps else windows.epoch,
        "phase": "steps" if measure.is_by_steps else np.where(training, "train", "evaluate"),
        "warmup": warmup,
        "start_ns": nanoseconds(windows.start_s),
        "duration_s": windows.duration_s,
        "interrupted": False,
        "from_step": begins if measure.is_by_steps else 0,
        "samples": by_phase("samples"),
        "steps": in_training(steps),
        "step_time_mean_s": in_training(mean_s),
        "step_time_p50_s": in_training(median_s),
        "step_time_p95_s": in_training(median_s * np.exp(_P95 * log_sigma)),
        "step_time_cv": in_training(prediction.step_cv),
        "data_wait_s": in_training(steps * split.input_s * stretch),
        "communication_s": in_training(steps * split.communication_s * stretch),
        "rank_wait_s": in_training(steps * split.slowest_s * stretch),
        "gpu_energy_j": by_phase("gpu_energy_j") * stretch * windows.power,
        "cpu_energy_j": by_phase("cpu_energy_j") * stretch,
        "dram_energy_j": by_phase("dram_energy_j") * stretch,
        "energy_source": "simulated",
        "energy_verdict": "ok",
        "gpu_power_mean_w": by_phase("gpu_power_w") * windows.power,
        "sm_util_mean": by_phase("sm_util"),
        "sm_util_cv": in_training(cycle.util_cv(cycle.sm_util)),
        "mem_util_mean": by_phase("mem_util"),
        "mem_util_cv": in_training(cycle.util_cv(cycle.mem_util)),
        "sm_clock_mean_mhz": in_training(prediction.clock_mhz),
        "power_limit_mean_w": float(job.limit_w),
        "power_throttle_share": in_training(prediction.power_throttle_share),
    }
    return table(columns | _progress(windows, simulation), count, EPOCHS)


def nanoseconds(since_begin_s: Floats) -> Integers:
    """Return times of a run on the simulated clock, in ns since 1970."""
    return VIRTUAL_BEGIN_NS + np.rint(since_begin_s * 1e9).astype(np.int64)


def _progress(windows: Windows, simulation: Simulation) -> dict[str, Any]:
    """Return the progress at each evaluation, as a share of the epochs to the target.

    These are E(B) = E_min (1 + B / B_crit): McCandlish et al. 2018, arXiv 1812.06162, in epochs of
    a fixed data set, whose number of steps is E times the samples over B.
    """
    job = windows.prediction.job
    if simulation.epochs_to_target is None or simulation.critical_batch is None:
        return {}
    needed = simulation.epochs_to_target * (1 + job.global_batch / simulation.critical_batch)
    share = (windows.epoch + 1) * job.setting.dataset_fraction / needed
    share = np.where(windows.is_training, math.nan, share)
    texts = [None if math.isnan(each) else json.dumps({PROGRESS: each}) for each in share.tolist()]
    return {"metric": share, "metrics": texts}


@dataclass(frozen=True)
class Sampling:
    """The times at which boards are read: every ``1 / sample_hz`` from ``first_s`` to the end."""

    sample_hz: float
    first_s: float
    readings: int  # of each board, before thinning
    kept: int

    @classmethod
    def of(
        cls, windows: Windows, sample_hz: float, boards: int, draw: np.random.Generator
    ) -> "Sampling":
        first_s = float(draw.random()) / sample_hz
        readings = max(0, ceil((windows.end_s - first_s) * sample_hz))
        return cls(sample_hz, first_s, readings, min(readings, MAX_SAMPLES // boards))


def telemetry_table(
    windows: Windows,
    sampling: Sampling,
    run_id: str,
    host: str,
    devices: Sequence[str],
    draw: np.random.Generator,
) -> pa.Table:
    """Return ``telemetry``, board by board: all have the same load, and times of their own."""
    prediction = windows.prediction
    edges = np.linspace(0, sampling.readings, sampling.kept + 1).astype(np.int64)
    shares = draw.random((len(devices), sampling.kept))
    chosen = edges[:-1] + (shares * np.diff(edges)).astype(np.int64)
    t_s = (sampling.first_s + chosen / sampling.sample_hz).ravel()
    window = np.searchsorted(windows.start_s, t_s, side="right") - 1
    training = windows.is_training[window]
    cycle = windows.cycle
    into_s = t_s - windows.start_s[window]
    starting = into_s < cycle.start_share * windows.duration_s[window]
    moments = draw.random(len(t_s)) * cycle.duration_s.sum()
    evaluation = prediction.evaluation or prediction.train

    def by_phase(values: Floats, over_s: float, start: float, evaluating: float) -> Floats:
        stepping = cycle.averaged(values, moments, over_s)
        return np.where(training, np.where(starting, start, stepping), evaluating)

    power_w = by_phase(cycle.power_w, POWER_AVERAGE_S, cycle.start_w, evaluation.gpu_power_w)
    limit_w = prediction.job.limit_w
    columns = {
        "run_id": run_id,
        "host": host,
        "device": np.repeat(devices, sampling.kept),
        "kind": "gpu",
        "t_ns": nanoseconds(t_s),
        "power_w": np.minimum(power_w * windows.power[window], limit_w),
        "power_source": "simulated",
        "power_limit_w": float(limit_w),
        "sm_util": by_phase(cycle.sm_util, UTIL_AVERAGE_S, 0.0, evaluation.sm_util),
        "mem_util": by_phase(cycle.mem_util, UTIL_AVERAGE_S, 0.0, evaluation.mem_util),
        "sm_clock_mhz": np.where(training, prediction.clock_mhz, math.nan),
    }
    return table(columns, len(t_s), TELEMETRY)
