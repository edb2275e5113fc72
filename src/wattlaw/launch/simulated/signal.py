"""Sensor readings of a repeating step: moving averages.

Utilisation is the average over the last sixth of a second (NVML: a sample period is between 1/6 s
and 1 s, ``nvmlDeviceGetUtilizationRates``). Power is the average over a tenth of a second (assumed:
boards refresh it every 10 to 100 ms). Readings have a uniformly random phase.
"""

from dataclasses import dataclass
from functools import cached_property
from math import sqrt

import numpy as np
import numpy.typing as npt

from wattlaw.simulator.job import Prediction

Floats = npt.NDArray[np.float64]

UTIL_AVERAGE_S = 1 / 6
POWER_AVERAGE_S = 0.1
#: Moments of a step from which its variation is computed.
_MOMENTS = 512


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

    @cached_property
    def step_s(self) -> float:
        """Return the time of a step."""
        return float(self.duration_s.sum())

    def averaged(self, values: Floats, moments: Floats, over_s: float) -> Floats:
        """Return the mean of ``values`` over ``over_s`` seconds after each of ``moments``."""
        ends_s = np.concatenate([[0.0], np.cumsum(self.duration_s)])
        sums = np.concatenate([[0.0], np.cumsum(self.duration_s * values)])

        def integral(t_s: Floats) -> Floats:
            steps, rest = np.divmod(t_s, ends_s[-1])
            total: Floats = steps * sums[-1] + np.interp(rest, ends_s, sums)
            return total

        means: Floats = (integral(moments + over_s) - integral(moments)) / over_s
        return means

    @cached_property
    def sm_util_cv(self) -> float | None:
        """Return the coefficient of variation of SM utilisation in a window; None if it is 0."""
        return self._cv(self.sm_util)

    @cached_property
    def mem_util_cv(self) -> float | None:
        """Return the same for memory utilisation."""
        return self._cv(self.mem_util)

    def _cv(self, values: Floats) -> float | None:
        moments = (np.arange(_MOMENTS) + 0.5) / _MOMENTS * self.step_s
        readings = self.averaged(values, moments, UTIL_AVERAGE_S)
        training = 1 - self.start_share
        mean = float(readings.mean()) * training
        square = float((readings**2).mean()) * training
        return sqrt(max(0.0, square - mean**2)) / mean if mean > 0 else None


def cycle_of(prediction: Prediction) -> Cycle:
    """Return the step of a prediction, and the begin of its training window.

    The power at the begin is such that the window has the predicted energy.
    """
    pieces = np.array([(p.duration_s, p.power_w, p.sm_util, p.mem_util) for p in prediction.phases])
    duration_s, power_w, sm_util, mem_util = pieces[pieces[:, 0] > 0].T
    train, job = prediction.train, prediction.job
    share = min(1.0, prediction.startup_s / train.duration_s)
    mean_w = float((duration_s * power_w).sum() / duration_s.sum())
    start_w = (train.gpu_power_w - mean_w * (1 - share)) / share if share > 0 else 0.0
    start_w = min(max(start_w, job.cluster.gpu.idle_w), job.power_limit_w or job.cluster.gpu.max_w)
    return Cycle(duration_s, power_w, sm_util, mem_util, share, start_w)
