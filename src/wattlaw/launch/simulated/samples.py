"""The telemetry of a simulated run: a part of the samples of some of its boards.

Samples are drawn by stratified sampling: the readings of a run are divided into equal parts, and
one reading is drawn from each. Every window has its share, without aliasing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from wattlaw.launch.simulated.columns import numbers, table, text, texts
from wattlaw.launch.simulated.signal import POWER_AVERAGE_S, UTIL_AVERAGE_S, cycle_of
from wattlaw.launch.simulated.windows import Windows, nanoseconds

if TYPE_CHECKING:
    import pyarrow as pa

Floats = npt.NDArray[np.float64]

#: Samples of a run, over its boards.
MAX_SAMPLES = 2000


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
        """Return the times for a number of boards; the first reading has a random phase."""
        first_s = float(draw.random()) / sample_hz
        readings = max(0, ceil((windows.end_s - first_s) * sample_hz))
        return cls(sample_hz, first_s, readings, min(readings, MAX_SAMPLES // boards))

    @property
    def is_thinned(self) -> bool:
        """Say whether readings are dropped."""
        return self.kept < self.readings

    def drawn_s(self, draw: np.random.Generator) -> Floats:
        """Return the times of the kept readings of a board, shape (kept,)."""
        edges = np.linspace(0, self.readings, self.kept + 1).astype(np.int64)
        chosen = edges[:-1] + (draw.random(self.kept) * np.diff(edges)).astype(np.int64)
        moments: Floats = self.first_s + chosen / self.sample_hz
        return moments


def telemetry_table(
    windows: Windows,
    sampling: Sampling,
    run_id: str,
    host: str,
    devices: Sequence[str],
    draw: np.random.Generator,
) -> "pa.Table":
    """Return the rows of ``telemetry``, board by board in order of time.

    All boards have the same load; each is read at its own times.
    """
    from wattlaw.store.schema import TELEMETRY

    prediction = windows.prediction
    t_s = np.concatenate([sampling.drawn_s(draw) for _ in devices])
    window = np.searchsorted(windows.start_s, t_s, side="right") - 1
    training = windows.is_training[window]
    cycle = cycle_of(prediction)
    into_s = t_s - windows.start_s[window]
    starting = into_s < cycle.start_share * windows.duration_s[window]
    moments = draw.random(len(t_s)) * cycle.step_s
    evaluation = prediction.evaluation or prediction.train

    def by_phase(values: Floats, over_s: float, start: float, evaluating: float) -> Floats:
        stepping = cycle.averaged(values, moments, over_s)
        readings: Floats = np.where(training, np.where(starting, start, stepping), evaluating)
        return readings

    power_w = by_phase(cycle.power_w, POWER_AVERAGE_S, cycle.start_w, evaluation.gpu_power_w)
    limit_w = prediction.job.power_limit_w or prediction.job.cluster.gpu.max_w
    count = len(t_s)
    sm_util = by_phase(cycle.sm_util, UTIL_AVERAGE_S, 0.0, evaluation.sm_util)
    mem_util = by_phase(cycle.mem_util, UTIL_AVERAGE_S, 0.0, evaluation.mem_util)
    columns = {
        "run_id": text(run_id, count),
        "host": text(host, count),
        "device": texts(devices, np.repeat(np.arange(len(devices)), sampling.kept)),
        "kind": text("gpu", count),
        "t_ns": numbers(nanoseconds(t_s)),
        "power_w": numbers(np.minimum(power_w * windows.power[window], limit_w)),
        "power_source": text("simulated", count),
        "power_limit_w": numbers(np.full(count, limit_w)),
        "sm_util": numbers(sm_util),
        "mem_util": numbers(mem_util),
        "sm_clock_mhz": numbers(np.full(count, prediction.clock_mhz), training),
    }
    return table(columns, count, TELEMETRY)
