"""What a run takes beside its training windows: start-up, evaluation, checkpoints, its end."""

import pandas as pd

from wattlaw.study.sources import MEASURED, source_of


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
