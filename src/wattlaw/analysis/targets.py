"""What it takes to reach a target quality, for every group of runs that learn alike."""

from dataclasses import dataclass

import pandas as pd

from wattlaw.analysis.batch_effects import LEARNING
from wattlaw.analysis.critical_batch import CriticalBatch, critical_batch
from wattlaw.analysis.groups import Group, groups
from wattlaw.analysis.quality import direction
from wattlaw.analysis.to_target import epochs_to_target, time_to_target
from wattlaw.errors import Refused


@dataclass(frozen=True)
class Targets:
    """``settings`` are rows of ``time_to_target``; ``critical`` the batch laws of the groups."""

    target: float
    settings: pd.DataFrame
    critical: tuple[tuple[Group, CriticalBatch], ...]
    refusals: tuple[tuple[Group, str], ...]


def find_targets(table: pd.DataFrame, epochs: pd.DataFrame, target: float) -> Targets:
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
    reached = epochs_to_target(epochs, target, {str(run): str(way) for run, way in better.items()})
    rows = table.merge(reached, on="run_id")
    critical, refusals = [], []
    for group, one in groups(rows, LEARNING):
        try:
            found = critical_batch(
                one["global_batch"].to_numpy(float, na_value=float("nan")),
                one["epochs_to_target"].to_numpy(float),
                one["epochs_evaluated"].to_numpy(float),
            )
            critical.append((group, found))
        except Refused as refusal:
            refusals.append((group, str(refusal)))
    return Targets(target, settings, tuple(critical), tuple(refusals))
