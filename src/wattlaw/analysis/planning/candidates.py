"""What can be measured next: a setting, how long its run takes, and when it is long enough."""

from dataclasses import dataclass

from wattlaw.analysis.prediction.settings import TrainingSetting

#: The standard error of a run's mean step time that suffices, as a share of the tolerance.
_PRECISE = 0.25


def is_long_enough(error: float, tolerance: float) -> bool:
    """Say whether more steps of a run would hardly change a decision.

    Parameters
    ----------
    error
        The standard error of its mean step time, as a share of it. Of n independent steps, it is
        their coefficient of variation over sqrt(n).
    tolerance
        The regret that does not matter.
    """
    return error <= _PRECISE * tolerance


@dataclass(frozen=True)
class Candidate:
    """A run that could be made.

    Parameters
    ----------
    setting
        What is run.
    steps
        Optimizer steps of the run, with warm-up.
    startup_s
        Time before the first step.
    informs
        The setting that the run is to decide about, where it emulates it on fewer GPUs.
    """

    setting: TrainingSetting
    steps: float
    startup_s: float = 0.0
    informs: TrainingSetting | None = None

    def gpu_hours(self, step_time_s: float) -> float:
        """Return the GPU-hours of the run for a time of a step."""
        return self.setting.gpus * (self.startup_s + self.steps * step_time_s) / 3600
