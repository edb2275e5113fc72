"""The epochs that a training needs to reach a target quality, by its global batch.

They depend on how the model is trained (global batch, options, training settings), not on where.
"""

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd

from wattlaw.analysis.laws.batch_effects import LEARNING
from wattlaw.analysis.metrics.estimates import Mean
from wattlaw.analysis.metrics.groups import groups
from wattlaw.analysis.metrics.metrics import direction
from wattlaw.common.errors import Refused

_LEARNING_AND_BATCH = [*LEARNING, "global_batch"]
_NUMBERS = ["epochs", "epochs_low", "epochs_high"]


def epochs_to_target(
    epochs: pd.DataFrame, target: float, better: Mapping[str, str]
) -> pd.DataFrame:
    """Return after how many epochs each run of ``better`` first reached a target.

    Warm-up epochs count: they train as well. Reached is at least (better ``higher``) or at most
    (``lower``) the target. The columns are ``run_id, epochs_to_target`` (missing when never
    reached), ``reached``.
    """
    evaluated = epochs[(epochs["phase"] == "evaluate") & epochs["metric"].notna()]
    evaluated = evaluated.assign(better=evaluated["run_id"].map(better)).dropna(subset="better")
    metric, higher = evaluated["metric"], evaluated["better"] == "higher"
    reached = (metric >= target).where(higher, metric <= target)
    number = (evaluated["epoch"] + 1).astype(float).where(reached)  # the first epoch is 0
    first = number.groupby(evaluated["run_id"]).min().rename("epochs_to_target")
    return first.to_frame().assign(reached=first.notna()).reset_index()


def epochs_by_batch(table: pd.DataFrame, epochs: pd.DataFrame, target: float) -> pd.DataFrame:
    """Return the epochs to a target quality, one row per global batch of runs that learn alike.

    Refused if no run with the time of an epoch was evaluated with a metric of known direction.
    Runs without a known global batch are left out. The columns are those of ``LEARNING``,
    ``global_batch``, ``runs`` (its repeats, on any GPUs), and ``epochs, epochs_low, epochs_high``:
    their geometric mean with its 95 % interval. It is missing if one repeat did not reach the
    target: ``why`` says so.
    """
    table = table[table["epoch_time_s"].notna()]
    better = table["metric_name"].map(direction, na_action="ignore").set_axis(table["run_id"])
    known = {str(run_id): way for run_id, way in better.dropna().items()}
    runs = table.merge(epochs_to_target(epochs, target, known), on="run_id")
    if runs.empty:
        raise Refused(
            "no run with a metric that is known to be better high or low was evaluated: evaluate "
            "(measure.evaluate), and name a metric such as accuracy or loss"
        )
    rows = []
    for group, repeats in groups(_learning_repeats(runs), _LEARNING_AND_BATCH):
        reached, count = int(repeats["reached"].sum()), len(repeats)
        row = {**group, "runs": count, "why": f"{reached} of {count} repeats reached the target"}
        if reached == count:
            mean = Mean.of(repeats["log_epochs"].to_numpy(float))
            ends = map(math.exp, (mean.value, *mean.interval))
            row |= {"why": None, **dict(zip(_NUMBERS, ends, strict=True))}
        rows.append(row)
    result = pd.DataFrame(rows, columns=[*_LEARNING_AND_BATCH, "runs", *_NUMBERS, "why"])
    return result.astype(dict.fromkeys(_NUMBERS, float))


def _learning_repeats(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per repeat that learns alike; on other GPUs it has the same seed.

    Of runs of one global batch that differ in how long they trained, and so in their learning
    rates, the longest count. ``reached`` is by all of a repeat's runs; ``log_epochs`` the mean of
    ln of their epochs to the target, missing where one did not reach it.
    """
    runs = runs[runs["global_batch"].notna()]
    longest = runs.groupby(_LEARNING_AND_BATCH, dropna=False)["epochs_trained"].transform("max")
    runs = runs[runs["epochs_trained"] == longest]
    runs = runs.assign(log_epochs=np.log(runs["epochs_to_target"].astype(float)))
    by = [*_LEARNING_AND_BATCH, "epochs_trained", "study", "repeat"]
    repeats = runs.groupby(by, dropna=False, as_index=False).agg(
        reached=("reached", "all"), log_epochs=("log_epochs", "mean")
    )
    return repeats.assign(log_epochs=repeats["log_epochs"].where(repeats["reached"].astype(bool)))
