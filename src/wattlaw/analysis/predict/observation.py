"""The observation of a setting."""

from dataclasses import dataclass
from math import exp

import numpy as np
import numpy.typing as npt

from wattlaw.analysis.metrics.result import Result
from wattlaw.common.errors import BadInput
from wattlaw.study.network import Network
from wattlaw.study.setting import Setting

Floats = npt.NDArray[np.float64]

#: Parts of a step that a run may have measured.
PARTS = ("communication_s", "waiting_s", "input_s")


@dataclass(frozen=True)
class Observation(Result):
    """A measured setting; ``BadInput`` if a time or power is not above 0, or a part is below 0.

    Communication is the part that the backward pass does not hide; without ``waiting_s`` it
    includes that wait.
    """

    setting: Setting
    step_time_s: float  # mean of an optimizer step
    power_per_gpu_w: float | None = None  # mean over the same time, if it was measured
    #: A name that runs of one job submission or day share. Without it, runs with the same placement
    #: count as one session.
    session: str | None = None
    communication_s: float | None = None  # parts of the step time, if they were measured
    waiting_s: float | None = None  # the mean wait of a rank for the slowest
    input_s: float | None = None  # the wait for samples
    #: Steps over which the time of an epoch was divided; None if ``step_time_s`` is of steps alone,
    #: without what an epoch takes beside them.
    epoch_steps: float | None = None
    slow_log: float = 0.0  # how much higher its log time is for a slow node that is named
    time_error: float = 0.0  # relative standard error of the step time, by the run's own steps
    is_short: bool = False  # too few or too unsteady steps to be certain by
    #: The transformer that was trained. With it, layouts other than data parallel are modelled.
    network: Network | None = None

    @property
    def healthy_step_s(self) -> float:
        """The step time without what a slow node adds."""
        return self.step_time_s * exp(-self.slow_log)

    def __post_init__(self) -> None:
        for name in ("step_time_s", "power_per_gpu_w", "epoch_steps"):
            value = getattr(self, name)
            if (name == "step_time_s" or value is not None) and not 0 < value < float("inf"):
                raise BadInput(f"{name}: given {value!r}; allowed: a number > 0")
        for name in PARTS:
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise BadInput(f"{name}: given {value!r}; allowed: a number >= 0")
