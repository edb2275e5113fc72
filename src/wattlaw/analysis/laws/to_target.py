"""Time and energy to a target quality: statistical times system efficiency.

Time to target = epochs to target x seconds per epoch. The epochs depend on how the model is trained
(global batch, options, training settings), the seconds on where (GPUs, caps, clocks): each factor
has its own repeats and its own uncertainty, and their product has both.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from wattlaw.analysis.laws.batch_effects import LEARNING
from wattlaw.analysis.laws.critical_batch import CriticalBatch, critical_batch
from wattlaw.analysis.metrics.estimates import Mean
from wattlaw.analysis.metrics.groups import Group, groups
from wattlaw.analysis.metrics.metrics import SETTINGS, direction
from wattlaw.common.errors import Refused

_LEARNING_AND_BATCH = [*LEARNING, "global_batch"]


def epochs_to_target(
    epochs: pd.DataFrame, target: float, better: Mapping[str, str]
) -> pd.DataFrame:
    """Return after how many epochs each run first reached a target.

    The evaluations of ``epochs``, windows of a store, have a ``metric``. Warm-up epochs count: they
    train as well. Reached is at least (better ``higher``) or at most (``lower``) the target. Runs
    that are not in ``better``, by ``run_id``, are left out. The columns are ``run_id,
    epochs_to_target`` (missing when never reached), ``reached, epochs_evaluated`` (up to the last
    evaluation), ``best``.
    """
    evaluated = epochs[(epochs["phase"] == "evaluate") & epochs["metric"].notna()]
    evaluated = evaluated.assign(better=evaluated["run_id"].map(better)).dropna(subset="better")
    metric, higher = evaluated["metric"], evaluated["better"] == "higher"
    evaluated = evaluated.assign(
        number=evaluated["epoch"] + 1,  # the first epoch is 0
        is_reached=(metric >= target).where(higher, metric <= target),
        signed=metric.where(higher, -metric),
    )
    by_run = evaluated.groupby("run_id", sort=True)
    first = evaluated[evaluated["is_reached"]].groupby("run_id")["number"].min()
    result = pd.DataFrame({"epochs_to_target": first.reindex(by_run.size().index).astype(float)})
    best = by_run["signed"].max()
    return result.assign(
        reached=result["epochs_to_target"].notna(),
        epochs_evaluated=by_run["number"].max(),
        best=best.where(by_run["better"].first() == "higher", -best),
    ).reset_index()


def time_to_target(table: pd.DataFrame, epochs: pd.DataFrame, target: float) -> pd.DataFrame:
    """Return time and energy to a target quality, one row per setting of ``run_metrics``.

    Refused if no run with the time of an epoch was evaluated with a metric of known direction.
    The columns are those of ``SETTINGS``, and

    - ``epochs_trained, runs, runs_reached`` of ``learning_repeats`` with this global batch, on any
      GPUs, and those that got there.
    - ``epochs, epochs_low, epochs_high``: geometric mean over these repeats; missing if one of them
      did not reach the target.
    - ``statistical_efficiency``: least ``epochs`` among the batches of the group / ``epochs``.
    - ``time_to_target_s, time_to_target_s_low, ..., energy_to_target_j, ...``: ``epochs`` x
      geometric mean over the setting's repeats of ``epoch_time_s`` and of ``energy_per_epoch_j``;
      training alone, without evaluations and start-up.
    - ``energy_is``: what the energy counts; no energy where that differs between repeats.
    - ``why`` there is no time, or None. Without a known global batch there is none.

    Intervals at 95 %: normal logs, variances of the two factors added, degrees of freedom by Welch
    and Satterthwaite; missing without repeats of both.
    """
    table = table[table["epoch_time_s"].notna()]
    runs = _reached(table, epochs, target)
    if runs.empty:
        raise Refused(
            "no run with a metric that is known to be better high or low was evaluated: evaluate "
            "(measure.evaluate), and name a metric such as accuracy or loss"
        )
    repeats_of_group = {
        tuple(group.values()): rows
        for group, rows in groups(learning_repeats(runs), _LEARNING_AND_BATCH)
    }
    settings = []
    for setting, rows in groups(table, SETTINGS):
        repeats = repeats_of_group.get(tuple(setting[name] for name in _LEARNING_AND_BATCH))
        if repeats is not None:
            settings.append(setting | _to_target(rows, repeats))
        elif setting["global_batch"] is None and rows["run_id"].isin(runs["run_id"]).any():
            unknown = dict.fromkeys(("epochs_trained", "runs", "runs_reached"), math.nan)
            why = "the global batch is not known, so runs of the same batch cannot be compared"
            settings.append(
                setting | unknown | _products(None, None, None) | {"energy_is": None, "why": why}
            )
    result = pd.DataFrame(settings)
    least = result.groupby(list(LEARNING), dropna=False)["epochs"].transform("min")
    return result.assign(statistical_efficiency=least / result["epochs"])


def _reached(table: pd.DataFrame, epochs: pd.DataFrame, target: float) -> pd.DataFrame:
    better = table["metric_name"].map(direction, na_action="ignore").set_axis(table["run_id"])
    known = {str(run_id): way for run_id, way in better.dropna().items()}
    return table.merge(epochs_to_target(epochs, target, known), on="run_id")


def learning_repeats(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per repeat that learns alike; on other GPUs it has the same seed.

    Of runs of one global batch that differ in how long they trained, and so in their learning
    rates, the longest count. Runs without a known global batch are left out.

    ``runs`` are rows of ``run_metrics`` with the columns of ``epochs_to_target``. The result has
    the columns of ``LEARNING``, ``global_batch, epochs_trained, study, repeat``; ``reached``, by
    all of the repeat's runs; ``log_epochs``, the mean of ln of their epochs to the target, missing
    where one did not reach it; and ``log_least``, the same with the epochs that were evaluated for
    those that did not reach it.
    """
    runs = runs[runs["global_batch"].notna()]
    longest = runs.groupby(_LEARNING_AND_BATCH, dropna=False)["epochs_trained"].transform("max")
    runs = runs[runs["epochs_trained"] == longest]
    least = runs["epochs_to_target"].fillna(runs["epochs_evaluated"])
    runs = runs.assign(log_least=np.log(least.astype(float)))
    by = [*_LEARNING_AND_BATCH, "epochs_trained", "study", "repeat"]
    repeats = runs.groupby(by, dropna=False, as_index=False).agg(
        reached=("reached", "all"), log_least=("log_least", "mean")
    )
    return repeats.assign(log_epochs=repeats["log_least"].where(repeats["reached"].astype(bool)))


def _to_target(rows: pd.DataFrame, repeats_of_group: pd.DataFrame) -> dict[str, object]:
    reached = int(repeats_of_group["reached"].sum())
    all_reached = reached == len(repeats_of_group)
    count = Mean.of(repeats_of_group["log_epochs"].to_numpy(float)) if all_reached else None
    kinds = rows["energy_is"].dropna().unique()
    is_known = len(kinds) == 1 and bool(rows["energy_per_epoch_j"].notna().all())
    time = Mean.of(np.log(rows["epoch_time_s"].to_numpy(float)))
    energy = Mean.of(np.log(rows["energy_per_epoch_j"].to_numpy(float))) if is_known else None
    why = f"{reached} of {len(repeats_of_group)} repeats reached the target"
    return {
        "epochs_trained": int(repeats_of_group["epochs_trained"].iloc[0]),
        "runs": len(repeats_of_group),
        "runs_reached": reached,
        **_products(count, time, energy),
        "energy_is": kinds[0] if is_known else None,
        "why": None if all_reached else why,
    }


def _products(count: Mean | None, time: Mean | None, energy: Mean | None) -> dict[str, object]:
    """Return the columns of the epochs, and of their products with time and energy, from logs."""
    row: dict[str, object] = {}
    for name, mean in {
        "epochs": count,
        "time_to_target_s": count and time and Mean.combined((count, time), (1, 1)),
        "energy_to_target_j": count and energy and Mean.combined((count, energy), (1, 1)),
    }.items():
        logs = (math.nan,) * 3 if mean is None else (mean.value, *mean.interval)
        row |= zip((name, f"{name}_low", f"{name}_high"), map(math.exp, logs), strict=True)
    return row


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

    Parameters and errors are those of ``time_to_target``.
    """
    settings = time_to_target(table, epochs, target)
    runs_reached = _reached(table, epochs, target)
    kept_groups, critical, refusals = [], [], []
    for group, runs in groups(table, LEARNING):
        evaluated = runs_reached[runs_reached["run_id"].isin(runs["run_id"])]
        try:
            names = sorted(map(str, runs["metric_name"].dropna().unique()))
            metrics = " and ".join(names)
            if not names:
                raise Refused(
                    "the metric has no name, so nothing says whether the target is one of it"
                )
            if all(direction(name) is None for name in names):
                raise Refused(f"{metrics} may be better high or low")
            if evaluated.empty:
                raise Refused(f"no run has {metrics}; evaluate (measure.evaluate)")
            if not evaluated["reached"].any():
                raise Refused(f"none of {len(evaluated)} runs reached {metrics} {target:g}")
            kept_groups.append(group)
            repeats = learning_repeats(evaluated)
            batch = repeats["global_batch"].to_numpy(float)
            logs = (repeats[name].to_numpy(float) for name in ("log_epochs", "log_least"))
            critical.append((group, critical_batch(batch, *map(np.exp, logs))))
        except Refused as refusal:
            refusals.append((group, str(refusal)))
    of_kept = [rows for group, rows in groups(settings, LEARNING) if group in kept_groups]
    shown = pd.concat(of_kept).sort_index() if of_kept else settings.iloc[:0]
    return Targets(target, shown, tuple(critical), tuple(refusals))
