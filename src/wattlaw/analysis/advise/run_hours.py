"""The GPU-hours of one more run, as long as those of the study."""

from collections.abc import Callable

import pandas as pd

from wattlaw.analysis.advise.option import Option
from wattlaw.analysis.metrics.metrics import HOUR_S


def run_hours(rows: pd.DataFrame) -> Callable[[Option], float]:
    """Return a function of an option: the GPU-hours of its run, without start-up.

    A run has the median number of units of ``rows``. Where most of them measured steps, it has
    their steps or seconds, and those of the warm-up.
    """
    by_steps = rows["basis"] == "steps"
    if by_steps.mean() <= 0.5:
        median = float((rows["train_time_s"] / rows["time_s"]).median())
        units = median if median > 0 else 1.0
        return lambda option: option.gpus * option.time_s.mean * units / HOUR_S
    own = rows[by_steps]
    seconds, warmup = own["measure_seconds"].astype(float), own["warmup_steps"].astype(float)
    steps = (own["train_time_s"] / own["step_time_s"]).where(seconds.isna(), 0.0)
    measured_s = float(seconds.fillna(0.0).median())
    count = float((steps + warmup.fillna(0.0)).median())
    of_unit = own["step_time_s"] / own["time_s"]
    per_sample = float((of_unit / own["global_batch"].astype(float)).median())
    per_step = float(of_unit.median())

    def hours(option: Option) -> float:
        of_step = per_sample * option.global_batch if option.global_batch else per_step
        time_s = measured_s + count * of_step * option.time_s.mean
        return option.gpus * time_s / HOUR_S

    return hours
