"""What can be measured next: a setting, and how long its run takes."""

from dataclasses import dataclass

from wattlaw.analysis.prediction.settings import TrainingSetting


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
