"""What a board's sensors say of a step that repeats: averages over a moment past.

Utilisation is the share of the last sixth of a second (NVML: a sample period is between 1/6 s and
1 s, ``nvmlDeviceGetUtilizationRates``); power is taken as averaged over a tenth (assumed: boards
refresh it every 10 to 100 ms). A moment of a step is as likely as any other.
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
#: Moments of a step by which its variation is known.
_MOMENTS = 512


@dataclass(frozen=True)
class Cycle:
    """A step as a sensor sees it: pieces in which nothing changes; arrays of shape (pieces,)."""

    duration_s: Floats
    power_w: Floats
    sm_util: Floats
    mem_util: Floats
    #: Share of the window before the first step, in which boards wait for samples.
    start_share: float
    start_w: float

    @cached_property
    def step_s(self) -> float:
        """Return the time of a step."""
        return float(self.duration_s.sum())

    def averaged(self, values: Floats, moments: Floats, over_s: float) -> Floats:
        """Return the mean of ``values`` over ``over_s`` seconds from each of some moments."""
        ends_s = np.concatenate([[0.0], np.cumsum(self.duration_s)])
        sums = np.concatenate([[0.0], np.cumsum(self.duration_s * values)])

        def summed(t_s: Floats) -> Floats:
            whole, part = np.divmod(t_s, ends_s[-1])
            total: Floats = whole * sums[-1] + np.interp(part, ends_s, sums)
            return total

        found: Floats = (summed(moments + over_s) - summed(moments)) / over_s
        return found

    @cached_property
    def sm_util_cv(self) -> float | None:
        """Return standard deviation over mean of a window's samples; None without any use."""
        return self._cv(self.sm_util)

    @cached_property
    def mem_util_cv(self) -> float | None:
        """Return the same of the memory's utilisation."""
        return self._cv(self.mem_util)

    def _cv(self, values: Floats) -> float | None:
        moments = (np.arange(_MOMENTS) + 0.5) / _MOMENTS * self.step_s
        told = self.averaged(values, moments, UTIL_AVERAGE_S)
        training = 1 - self.start_share
        mean = float(told.mean()) * training
        square = float((told**2).mean()) * training
        return sqrt(max(0.0, square - mean**2)) / mean if mean > 0 else None


def cycle_of(prediction: Prediction) -> Cycle:
    """Return the step of a prediction, and how its training window begins.

    The power of the beginning is what is left of the window's energy.
    """
    pieces = np.array(
        [(one.duration_s, one.power_w, one.sm_util, one.mem_util) for one in prediction.phases]
    )
    duration_s, power_w, sm_util, mem_util = pieces[pieces[:, 0] > 0].T
    train, job = prediction.train, prediction.job
    share = min(1.0, prediction.startup_s / train.duration_s)
    mean_w = float((duration_s * power_w).sum() / duration_s.sum())
    start_w = (train.gpu_power_w - mean_w * (1 - share)) / share if share > 0 else 0.0
    start_w = min(max(start_w, job.cluster.gpu.idle_w), job.power_limit_w or job.cluster.gpu.max_w)
    return Cycle(duration_s, power_w, sm_util, mem_util, share, start_w)
