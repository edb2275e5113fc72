"""From windows to one row per run, and from repeats to one row per setting.

Training time and energy come from training windows that are not warm-up. Evaluation never enters
them. What was not measured stays missing.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

SETTINGS = (
    "workload", "options", "hardware", "launcher", "nodes", "gpus", "global_batch", "local_batch",
    "precision", "power_limit_w", "clock_limit_mhz", "dataset_fraction", "threads_per_worker",
)  # fmt: skip
#: A window that is less of its epoch does not decide about the energy, nor count in it.
_TELLING = 0.01
_VERDICTS = ("ok", "suspect", "partial", "unavailable")  # from best to worst
_PARTS = {"gpu": "gpu_energy_j", "cpu": "cpu_energy_j", "dram": "dram_energy_j"}
QUANTITIES = ("epoch_time_s", "samples_per_s", "energy_per_epoch_j", "metric")


def run_metrics(runs: pd.DataFrame, epochs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per done run.

    Parameters
    ----------
    runs, epochs
        Tables of one or more stores, columns as in ``store.schema``.

    Returns
    -------
    DataFrame
        The columns of ``SETTINGS``, ``run_id``, ``repeat``, ``metric_name``, and:
        ``epoch_time_s`` (mean over epochs of the slowest host's training window),
        ``samples_per_s`` (all hosts),
        ``energy_per_epoch_j`` (sum over hosts of the parts in ``energy_scope``; missing as soon
        as one window has none, or that of a part of it only),
        ``energy_source`` (``mixed`` when windows differ), ``energy_verdict`` (the worst),
        ``energy_is`` (these in words), ``metric`` and ``loss`` (last evaluation),
        ``cpu_cores`` (mean busy cores).
    """
    done = runs[runs["status"] == "done"]
    kept = done[["run_id", "repeat", "metric_name", *SETTINGS]]
    training = epochs[(epochs["phase"] == "train") & ~epochs["warmup"].astype(bool)]
    rows = [_training(str(run_id), windows) for run_id, windows in training.groupby("run_id")]
    timed = pd.DataFrame(rows, columns=_COLUMNS)
    judged = epochs[epochs["phase"] == "evaluate"].sort_values("epoch")
    last = judged.groupby("run_id").tail(1)[["run_id", "metric", "loss"]]
    table = kept.merge(timed, on="run_id").merge(last, on="run_id", how="left")
    return table.sort_values([*_SORT, "run_id"], ignore_index=True)


_SORT = ("workload", "hardware", "gpus", "global_batch", "repeat")
_COLUMNS = [
    "run_id", "epoch_time_s", "samples_per_s", "energy_per_epoch_j", "energy_scope",
    "energy_source", "energy_verdict", "energy_is", "cpu_cores",
]  # fmt: skip


def _training(run_id: str, windows: pd.DataFrame) -> dict[str, object]:
    # A tracked epoch that an evaluation interrupts has several windows per host.
    of_host_s = windows.groupby(["epoch", "host"])["duration_s"].sum()
    time_s = of_host_s.groupby("epoch").max()
    samples = windows.groupby("epoch")["samples"].sum(min_count=1)
    # What an evaluation leaves of an epoch may be too short to be measured by itself.
    share = windows["duration_s"] / windows.groupby(["epoch", "host"])["duration_s"].transform(
        "sum"
    )
    told = windows[share >= _TELLING]
    energy_j, scope = _energy(told)
    sources = set(told["energy_source"])
    worst = max(_VERDICTS.index(verdict) for verdict in told["energy_verdict"])
    mixed = len(sources) > 1
    row = {
        "run_id": run_id,
        "epoch_time_s": float(time_s.mean()),
        "samples_per_s": float(samples.sum(min_count=1) / time_s.sum()),
        "energy_per_epoch_j": energy_j,
        "energy_scope": scope,
        "energy_source": "mixed" if mixed else str(sources.pop()),
        "energy_verdict": _VERDICTS[max(worst, 1) if mixed else worst],
        "cpu_cores": float(windows["cpu_cores_mean"].mean()),
    }
    return row | {"energy_is": _energy_is(row)}


def _energy(windows: pd.DataFrame) -> tuple[float, str | None]:
    """Return mean energy per epoch and what it counts; missing when any window lacks a part."""
    parts = [part for part, column in _PARTS.items() if windows[column].notna().any()]
    if not parts or windows["energy_verdict"].isin(("partial", "unavailable")).any():
        return np.nan, None
    counted = windows[[_PARTS[part] for part in parts]]
    if counted.isna().to_numpy().any():
        return np.nan, None
    per_epoch = counted.sum(axis=1).groupby(windows["epoch"]).sum()
    return float(per_epoch.mean()), "+".join(parts)


def cells(table: pd.DataFrame, by: Sequence[str] = SETTINGS) -> pd.DataFrame:
    """Return repeats aggregated per setting.

    For each quantity q of ``QUANTITIES``: ``q`` (mean), ``q_sd``, ``q_low`` and ``q_high`` (95 %
    interval of the mean by Student's t; missing for a single repeat), ``n`` repeats, and
    ``energy_is``: ``energy_words`` of the repeats, missing where there are none. No mean is taken
    over energies that count different things.
    """
    grouped = table.groupby(list(by), dropna=False, sort=True)
    columns: dict[str, pd.Series] = {"n": grouped.size()}
    columns["energy_is"] = grouped["energy_is"].agg(energy_words)
    alike = grouped["energy_is"].transform("nunique") <= 1
    table = table.assign(energy_per_epoch_j=table["energy_per_epoch_j"].where(alike))
    grouped = table.groupby(list(by), dropna=False, sort=True)
    for name in QUANTITIES:
        values = grouped[name]
        count, mean, sd = values.count(), values.mean(), values.std(ddof=1)
        half = stats.t.ppf(0.975, count.where(count > 1) - 1) * sd / np.sqrt(count)
        columns |= {name: mean, f"{name}_sd": sd, f"{name}_low": mean - half}
        columns[f"{name}_high"] = mean + half
    return pd.DataFrame(columns).reset_index()


def energy_words(words: pd.Series) -> str | None:
    """Return the different values of ``energy_is`` as one text; None without any."""
    return "; ".join(sorted(words.dropna().unique())) or None


def _energy_is(row: dict[str, Any]) -> str | None:
    """Return what a run's energy counts, where it comes from, and any doubt about it."""
    if row["energy_scope"] is not None:
        doubt = ", suspect" if row["energy_verdict"] == "suspect" else ""
        return f"{row['energy_scope']}, {row['energy_source']}{doubt}"
    return "partial, left out" if row["energy_verdict"] == "partial" else None
