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
from wattlaw.analysis.metrics.estimates import Mean
from wattlaw.analysis.metrics.groups import Group, groups
from wattlaw.analysis.metrics.metrics import SETTINGS, direction
from wattlaw.common.errors import Refused

_LEARNING_AND_BATCH = [*LEARNING, "global_batch"]
_NUMBERS = [
    "epochs_trained", "runs", "runs_reached",
    *(name + end for name in ("epochs", "time_to_target_s", "energy_to_target_j")
      for end in ("", "_low", "_high")),
]  # fmt: skip
_COLUMNS = [*_NUMBERS, "energy_is", "why"]


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


def time_to_target(table: pd.DataFrame, epochs: pd.DataFrame, target: float) -> pd.DataFrame:
    """Return time and energy to a target quality, one row per setting of ``run_metrics``.

    Refused if no run with the time of an epoch was evaluated with a metric of known direction.
    The columns are those of ``SETTINGS``, and

    - ``epochs_trained, runs, runs_reached``: repeats with this global batch, on any GPUs, and those
      that got there; ``epochs, epochs_low, epochs_high``: their geometric mean, missing if one of
      them did not; ``statistical_efficiency``: least ``epochs`` among the batches / ``epochs``.
    - ``time_to_target_s, ..._low, ..._high, energy_to_target_j, ...``: ``epochs`` x geometric mean
      over the setting's repeats of time and energy per epoch, without evaluations and start-up.
    - ``energy_is``: what the energy counts; ``why`` there is no time, or None.

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
        for group, rows in groups(_learning_repeats(runs), _LEARNING_AND_BATCH)
    }
    settings = []
    for setting, rows in groups(table, SETTINGS):
        repeats = repeats_of_group.get(tuple(setting[name] for name in _LEARNING_AND_BATCH))
        if repeats is not None:
            settings.append(setting | _to_target(rows, repeats))
        elif setting["global_batch"] is None and rows["run_id"].isin(runs["run_id"]).any():
            why = "the global batch is not known, so runs of the same batch cannot be compared"
            settings.append(setting | {"why": why})
    result = pd.DataFrame(settings, columns=[*SETTINGS, *_COLUMNS])
    result = result.astype(dict.fromkeys(_NUMBERS[3:], float))
    least = result.groupby(list(LEARNING), dropna=False)["epochs"].transform("min")
    return result.assign(statistical_efficiency=least / result["epochs"])


def _reached(table: pd.DataFrame, epochs: pd.DataFrame, target: float) -> pd.DataFrame:
    better = table["metric_name"].map(direction, na_action="ignore").set_axis(table["run_id"])
    known = {str(run_id): way for run_id, way in better.dropna().items()}
    return table.merge(epochs_to_target(epochs, target, known), on="run_id")


def _learning_repeats(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per repeat that learns alike; on other GPUs it has the same seed.

    Of runs of one global batch that differ in how long they trained, and so in their learning
    rates, the longest count. Runs without a known global batch are left out. ``reached`` is by all
    of a repeat's runs; ``log_epochs`` the mean of ln of their epochs to the target, missing where
    one did not reach it.
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


def _to_target(rows: pd.DataFrame, repeats: pd.DataFrame) -> dict[str, object]:
    kinds = rows["energy_is"].dropna().unique()
    is_known = len(kinds) == 1 and bool(rows["energy_per_epoch_j"].notna().all())
    reached = int(repeats["reached"].sum())
    row: dict[str, object] = {
        "epochs_trained": int(repeats["epochs_trained"].iloc[0]),
        "runs": len(repeats),
        "runs_reached": reached,
        "energy_is": kinds[0] if is_known else None,
        "why": None,
    }
    if reached < len(repeats):
        return row | {"why": f"{reached} of {len(repeats)} repeats reached the target"}
    count = Mean.of(repeats["log_epochs"].to_numpy(float))
    means = {"epochs": count}
    for name, column in (("time", "epoch_time_s"), ("energy", "energy_per_epoch_j")):
        if name == "time" or is_known:
            factor = Mean.of(np.log(rows[column].to_numpy(float)))
            means[f"{name}_to_target_{column[-1]}"] = Mean.combined((count, factor), (1, 1))
    for name, mean in means.items():
        logs = (mean.value, *mean.interval)
        row |= zip((name, f"{name}_low", f"{name}_high"), map(math.exp, logs), strict=True)
    return row


@dataclass(frozen=True)
class Targets:
    """``settings`` are rows of ``time_to_target``, without those of the groups in ``refusals``.

    These have a metric without a name or a known direction, or no run that reached the target: it
    may be that of another workload.
    """

    target: float
    settings: pd.DataFrame
    refusals: tuple[tuple[Group, str], ...]


def analyse_targets(table: pd.DataFrame, epochs: pd.DataFrame, target: float) -> Targets:
    settings = time_to_target(table, epochs, target)
    reached = _reached(table, epochs, target)
    refusals = []
    for group, runs in groups(table, LEARNING):
        evaluated = reached[reached["run_id"].isin(runs["run_id"])]
        names = sorted(map(str, runs["metric_name"].dropna().unique()))
        metrics, why = " and ".join(names), ""
        if not names:
            why = "the metric has no name, so nothing says whether the target is one of it"
        elif all(direction(name) is None for name in names):
            why = f"{metrics} may be better high or low"
        elif evaluated.empty:
            why = f"no run has {metrics}; evaluate (measure.evaluate)"
        elif not evaluated["reached"].any():
            why = f"none of {len(evaluated)} runs reached {metrics} {target:g}"
        if why:
            refusals.append((group, why))
    refused = [group for group, _ in refusals]
    kept = [rows for group, rows in groups(settings, LEARNING) if group not in refused]
    shown = pd.concat(kept).sort_index() if kept else settings.iloc[:0]
    return Targets(target, shown, tuple(refusals))
