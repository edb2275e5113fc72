"""What it takes to reach a target quality, for every group of runs that learn alike."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from wattlaw.analysis.batch_effects import LEARNING
from wattlaw.analysis.critical_batch import CriticalBatch, critical_batch
from wattlaw.analysis.groups import Group, groups
from wattlaw.analysis.quality import direction
from wattlaw.analysis.to_target import epochs_to_target, learning_repeats, time_to_target
from wattlaw.errors import Refused


@dataclass(frozen=True)
class Targets:
    """``settings`` are rows of ``time_to_target``; ``critical`` the batch laws of the groups.

    A group without a law is in ``refusals`` with the reason. One whose metric has no known
    direction, or of which no run reached the target, has no rows in ``settings`` either: the target
    may be that of another workload.
    """

    target: float
    settings: pd.DataFrame
    critical: tuple[tuple[Group, CriticalBatch], ...]
    refusals: tuple[tuple[Group, str], ...]


def analyse_targets(table: pd.DataFrame, epochs: pd.DataFrame, target: float) -> Targets:
    """Return time and energy to ``target`` by setting, and epochs to it by global batch.

    Parameters
    ----------
    table, epochs
        Rows of ``run_metrics`` and the windows of the same runs.
    target
        In the unit of the runs' metric; which way is better goes by its name.

    Raises
    ------
    Refused
        No run's metric has a known direction.
    """
    settings = time_to_target(table, epochs, target)
    better = table.set_index("run_id")["metric_name"].map(direction, na_action="ignore").dropna()
    reached = epochs_to_target(
        epochs, target, {str(run): str(better_way) for run, better_way in better.items()}
    )
    kept_groups, critical, refusals = [], [], []
    for group, runs in groups(table, LEARNING):
        evaluated = runs.merge(reached, on="run_id")
        try:
            _check(runs, evaluated, target)
            kept_groups.append(group)
            critical.append((group, _critical(evaluated)))
        except Refused as refusal:
            refusals.append((group, str(refusal)))
    of_kept = [rows for group, rows in groups(settings, LEARNING) if group in kept_groups]
    shown = pd.concat(of_kept).sort_index() if of_kept else settings.iloc[:0]
    return Targets(target, shown, tuple(critical), tuple(refusals))


def _check(runs: pd.DataFrame, evaluated: pd.DataFrame, target: float) -> None:
    """Raise where the target says nothing of a group's runs."""
    names = sorted(map(str, runs["metric_name"].dropna().unique()))
    if not names:
        raise Refused("the metric has no name, so nothing says whether the target is one of it")
    metrics = " and ".join(names)
    if all(direction(name) is None for name in names):
        raise Refused(f"{metrics} may be better high or low")
    if evaluated.empty:
        raise Refused(f"no run has {metrics}; evaluate (measure.evaluate)")
    if not evaluated["reached"].any():
        raise Refused(f"none of {len(evaluated)} runs reached {metrics} {target:g}")


def _critical(evaluated: pd.DataFrame) -> CriticalBatch:
    repeats = learning_repeats(evaluated)
    return critical_batch(
        repeats["global_batch"].to_numpy(float),
        np.exp(repeats["log_epochs"].to_numpy(float)),
        np.exp(repeats["log_least"].to_numpy(float)),
    )
