"""How well a run knows its mean step time by its own steps."""

from collections.abc import Mapping, Sequence
from math import ceil, sqrt
from typing import Any

import pandas as pd
from scipy import special

from wattlaw.analysis.metrics.estimates import LEVEL
from wattlaw.study.sources import MEASURED, source_of

#: A run that knows its mean no better (its 95 % interval is +-10 %, the tolerance of a study on
#: cores in running/first_study.py), or that has fewer steps, is too little to be sure by.
SHORT, _FEW_STEPS = 0.05, 10
#: ``steps_needed`` are enough with this probability, where another run's steps vary as much.
_ENOUGH = 0.9
MORE_STEPS = (
    "Measure more steps (measure.steps). Where the training has no more, let it train for more "
    "epochs or with a smaller batch."
)
#: Blocks of a window that ``step_time_error`` is from, and windows that show their own scatter.
_BLOCKS, _LEAST_WINDOWS = 10, 4
#: An active run is measured for this time, without warm-up, before it may be stopped early, and
#: shows an error of its step time by as many windows.
_LEAST_S, _LEAST_ACTIVE = 10.0, 3


def time_errors(windows: pd.DataFrame) -> pd.Series:
    """Return the relative standard error of the mean step time of runs, of the slowest known host.

    That within windows, with Student's t for few blocks, or between them: the larger counts.
    """
    known = windows[windows["step_time_error"].notna() & (windows["steps"] > 0)]
    steps, duration_s = known["steps"].astype(float), known["duration_s"]
    if known.empty:
        return pd.Series(name="time_error", dtype=float)
    groups = [known["run_id"], known["host"]]
    total, total_s = (own.groupby(groups).transform("sum") for own in (steps, duration_s))
    share, relative = steps / total, duration_s / steps * total / total_s
    freedom = (steps.clip(upper=_BLOCKS) - 1).groupby(groups).sum()
    level = (1 + LEVEL) / 2
    factor = special.stdtrit(freedom, level) / special.ndtri(level)
    own = (share * relative * known["step_time_error"].astype(float)) ** 2
    within = own.groupby(groups).sum() * factor**2
    between, count = (share * (relative - 1) ** 2).groupby(groups).sum(), own.groupby(groups).size()
    between = (between / (count - 1)).where(count >= _LEAST_WINDOWS, 0.0)
    errors: pd.Series = within.where(within > between, between) ** 0.5
    return errors.groupby(level="run_id").max().rename("time_error")


def are_short(table: pd.DataFrame) -> pd.Series:
    """Say which runs have too few or too unsteady steps: rows with ``time_error`` and times."""
    is_few = table["train_time_s"] < (_FEW_STEPS - 0.5) * table["step_time_s"]
    is_few &= (table["basis"] == "steps") & (table["launcher"].map(source_of) == MEASURED)
    return is_few | (table["time_error"] > SHORT)


def steps_needed(windows: Sequence[Mapping[str, Any]]) -> int:
    """Return how many steps a run should measure so that it is not one of ``are_short``.

    ``windows``, at least one, are of another run of the training, on one host. The two estimates of
    the variance of the mean, each by the means of ten blocks, differ as an F distribution says.
    """
    table = pd.DataFrame(windows)
    table = table[~table["warmup"].astype(bool)].assign(run_id="", host="")
    steps, freedom = int(table["steps"].sum()), _BLOCKS - 1
    if steps < _FEW_STEPS:  # they show no variation
        return _FEW_STEPS
    error = float(time_errors(table).fillna(0.0).max())
    margin = float(special.fdtri(freedom, freedom, _ENOUGH))
    return max(_FEW_STEPS, ceil(steps * margin * (error / SHORT) ** 2))


def step_time_so_far(
    windows: Sequence[Mapping[str, Any]], nodes: int
) -> tuple[float, float | None] | None:
    """Return the step time of an active run and its error; None before 10 s are measured."""
    columns = ["host", "phase", "warmup", "interrupted", "steps", "duration_s", "step_time_cv"]
    table = pd.DataFrame(windows, columns=columns)
    is_whole = ~(table["warmup"].astype(bool) | table["interrupted"].astype(bool))
    is_whole &= table["phase"].isin(["train", "steps"])
    is_whole &= (table["steps"] > 0) & (table["duration_s"] > 0)
    by_host = table[is_whole].groupby("host")
    seconds = by_host["duration_s"].sum()
    if len(seconds) < nodes or seconds.min() < _LEAST_S:
        return None
    times_s = seconds / by_host["steps"].sum()
    mean_s, rows = float(times_s.max()), by_host.get_group(times_s.idxmax())
    if len(rows) < _LEAST_ACTIVE:
        return mean_s, None
    # Steps of a window may be alike, and differ from those of another: the larger error counts.
    steps = rows["steps"].astype(float)
    share, relative = steps / steps.sum(), rows["duration_s"] / steps / mean_s
    between = (share * (relative - 1) ** 2).sum() / (len(rows) - 1)
    cv = rows["step_time_cv"].astype(float).fillna(0.0)
    within = (steps * (cv * relative) ** 2).sum() / steps.sum() ** 2
    return mean_s, sqrt(max(between, within))
