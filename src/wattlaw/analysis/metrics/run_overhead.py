"""What a run takes beside its training windows: start-up, evaluation, checkpoints, its end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log2
from typing import Any, Self

import numpy as np
import pandas as pd

from wattlaw.analysis.metrics.estimates import Floats, pooled_variance
from wattlaw.study.setting import Setting
from wattlaw.study.sources import MEASURED, source_of

#: Columns of a run from which the time and energy beside its training are computed.
PARTS = ("startup_s", "end_s", "between_s", "evals_per_epoch", "eval_time_s", "eval_energy_j")
#: Those that are of an epoch: of how many samples is not known where runs have no epochs.
_OF_EPOCHS = ["between_s", "evals_per_epoch"]
#: Settings differ most by those of these numbers with the largest ratio.
_SIZES = ("gpus", "global_batch", "power_limit_w", "clock_limit_mhz")


def overheads(
    runs: pd.DataFrame, training: pd.DataFrame, evaluations: pd.DataFrame, timed: pd.DataFrame
) -> pd.DataFrame:
    """Return the overheads of runs that were measured here in one attempt; a row per run.

    ``timed`` has the means over measured windows, as ``run_metrics`` has them. Only ``startup_s``
    is known where steps were measured, and nothing where a whole process was.
    """
    is_own = (runs["launcher"].map(source_of) == MEASURED) & (runs["attempts"] == 1)
    own = runs[is_own & runs["run_id"].isin(timed.index)].set_index("run_id")
    own = own.drop(training.loc[training["phase"] == "run", "run_id"].unique(), errors="ignore")
    if own.empty:
        return pd.DataFrame(columns=["startup_s", "end_s", *_OF_EPOCHS], dtype=float)
    windows = pd.concat([training, evaluations])
    windows = windows[windows["run_id"].isin(own.index)].assign(
        end_s=lambda rows: rows["start_ns"] / 1e9 + rows["duration_s"]
    )
    by_run = windows.groupby("run_id")
    begin_s, end_s = by_run["start_ns"].min() / 1e9, by_run["end_s"].max()
    is_epoch = training["phase"] == "train"
    counts = training[is_epoch].groupby("run_id")["epoch"].nunique()
    epochs = counts.reindex(begin_s.index).astype(float)
    started_s, finished_s = (
        _seconds(own[name]).reindex(begin_s.index) for name in ("started_at", "finished_at")
    )
    in_windows_s = windows.groupby(["run_id", "host"])["duration_s"].sum().groupby("run_id").max()
    evaluated = evaluations.groupby("run_id")["epoch"].nunique()
    table = pd.DataFrame(
        {
            "startup_s": begin_s - started_s,
            "end_s": (finished_s - end_s).where(epochs > 0),
            "between_s": (end_s - begin_s - in_windows_s) / (epochs - 1).where(epochs > 1),
        }
    )
    table = table.where(table >= 0)  # else the clocks of hosts differ, or windows overlap
    table["startup_s"] += _warmup_excess_s(training, timed).reindex(table.index, fill_value=0.0)
    table["evals_per_epoch"] = evaluated.reindex(table.index, fill_value=0) / epochs
    return table


def _warmup_excess_s(training: pd.DataFrame, timed: pd.DataFrame) -> pd.Series:
    """Return how much longer the warm-up of runs takes than as much training later."""
    warmup = training[training["warmup"].astype(bool)]
    by_host = warmup.groupby(["run_id", "host", "phase"])
    own = by_host.agg({"duration_s": "sum", "steps": "sum", "epoch": "nunique"})
    own = own.groupby(["run_id", "phase"]).max().reset_index("phase")
    block = timed.reindex(own.index)
    blocks = own["epoch"].where(own["phase"] == "train", own["steps"] / block["steps"])
    return (own["duration_s"] - blocks * block["block_time_s"]).clip(lower=0.0)


def _seconds(moments: pd.Series) -> pd.Series:
    began = pd.Timestamp(0, tz="UTC")
    return (pd.to_datetime(moments, utc=True) - began).dt.total_seconds()


def parts_of_runs(rows: pd.DataFrame, group: pd.Series) -> pd.DataFrame:
    """Return ``PARTS`` of runs; one that lacks a part has the mean of its setting, the group."""
    parts = rows[[*PARTS]].astype(float)
    parts = parts.fillna(parts.groupby(group).transform("mean"))
    parts.loc[~rows["unit"].isin(["epoch", "run"]), _OF_EPOCHS] = np.nan
    return parts.mask(rows["basis"] == "run", 0.0)  # a process has all of them


def beside_training(parts: Mapping[str, Any] | pd.DataFrame, epochs: Any) -> tuple[Any, Any]:
    """Return the time and energy of what is known beside the training of an amount of epochs.

    A part of an epoch at the end is not evaluated. Of the energy, only evaluations are known.
    """
    evaluations = np.floor(epochs * parts["evals_per_epoch"] + 1e-9)
    between_s = np.nan_to_num(parts["between_s"]) * np.maximum(epochs - 1, 0.0)
    once_s = np.nan_to_num(parts["startup_s"]) + np.nan_to_num(parts["end_s"])
    time_s = once_s + between_s + np.nan_to_num(evaluations * parts["eval_time_s"])
    return time_s, np.nan_to_num(evaluations * parts["eval_energy_j"])


def nearest(setting: Setting, measured: Sequence[Setting]) -> int:
    """Return which measured setting is nearest: of the same precision, then by ratios of sizes."""

    def distance(other: Setting) -> tuple[bool, float]:
        pairs = [(getattr(setting, name), getattr(other, name)) for name in _SIZES]
        ratios = [abs(log2(a / b)) if a and b else float(a != b) for a, b in pairs]
        return setting.precision != other.precision, sum(ratios)

    return min(range(len(measured)), key=lambda at: distance(measured[at]))


@dataclass(frozen=True)
class Overheads:
    """What jobs take beside training, by measured setting; others take the nearest one's."""

    settings: Sequence[Setting]
    parts: pd.DataFrame  # the means of ``PARTS`` of each setting
    spread: float  # the standard deviation of the logarithm of a job's time

    @classmethod
    def of(cls, rows: pd.DataFrame, settings: Sequence[Setting]) -> Self:
        """Return the overheads of runs, each with its setting."""
        distinct = list(dict.fromkeys(settings))
        group = pd.Series([distinct.index(item) for item in settings], index=rows.index)
        parts = parts_of_runs(rows, group)
        parts = parts[parts[["startup_s", *_OF_EPOCHS]].notna().any(axis=1)]
        times = pd.Series(beside_training(parts, 1.0)[0], parts.index, dtype=float)
        logs = (np.log(own.to_numpy()) for _, own in times[times > 0].groupby(group))
        variance, freedom = pooled_variance(logs)
        spread, means = float(np.sqrt(variance)) if freedom else 0.0, parts.groupby(group).mean()
        return cls([distinct[int(at)] for at in means.index], means, spread)

    def beside(self, settings: Sequence[Setting], epochs: Sequence[float]) -> tuple[Floats, Floats]:
        """Return the time and energy beside the training of settings; 0 where none is known."""
        if not self.settings:
            return np.zeros(len(settings)), np.zeros(len(settings))
        own = self.parts.iloc[[nearest(item, self.settings) for item in settings]]
        return beside_training(own.reset_index(drop=True), np.array(epochs, dtype=float))
