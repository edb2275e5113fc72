"""From windows to one row per run.

Training time and energy come from training windows that are neither warm-up nor interrupted.
Evaluation never enters them; it has columns of its own. What was not measured stays missing.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

SETTINGS = (
    "workload", "options", "train", "hardware", "launcher", "nodes", "gpus", "global_batch",
    "local_batch", "precision", "power_limit_w", "clock_limit_mhz", "dataset_fraction",
    "threads_per_worker",
)  # fmt: skip
#: A window shorter than this share of its epoch is ignored for the energy of the epoch.
_TELLING = 0.01
_PARTS = {"gpu": "gpu_energy_j", "cpu": "cpu_energy_j", "dram": "dram_energy_j"}
_KEPT = ("run_id", "study", "repeat", "metric_name", "parameters", "flops_per_sample")
_VERDICTS = ("ok", "suspect", "partial", "implausible", "unavailable")  # from best to worst
#: Settings of the training loop that change neither time nor energy of an epoch.
_NO_MATTER = ("seed", "checkpoint_every", "save_model")
_SORT = ("workload", "hardware", "gpus", "global_batch", "repeat")
HOUR_S = 3600.0


def run_metrics(runs: pd.DataFrame, epochs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per done run that has a measured training window of more than 0 s.

    Parameters
    ----------
    runs, epochs
        Tables of one or more stores, columns as in ``store.schema``.

    Returns
    -------
    DataFrame
        The columns of ``SETTINGS``, and ``run_id, study, repeat, metric_name, parameters,
        flops_per_sample``. Per run, T an epoch's training time, E its energy, N the GPUs:

        ``epoch_time_s``
            T: mean over epochs of the slowest host's training window.
        ``epochs_timed, train_time_s``
            Over how many epochs, and their sum.
        ``samples_per_epoch, steps_per_epoch, samples_per_s``
            Of all hosts; steps are optimiser steps.
        ``energy_per_epoch_j, energy_per_sample_j, energy_per_step_j``
            E: sum over hosts of the parts in ``energy_scope``; missing if a window has no energy or
            only that of a part of its time, and if the sum is not above 0.
        ``energy_delay_js, energy_delay2_js2``
            E T and E T^2 of an epoch.
        ``energy_scope, energy_source, energy_verdict, energy_is``
            Which devices are counted; the source, ``mixed`` when windows differ; the worst verdict;
            and the three as one text, such as ``gpu, counter``.
        ``gpu_energy_per_epoch_j, power_per_gpu_w``
            The GPUs' part alone, and its mean power over N T.
        ``gpu_hours_per_epoch, samples_per_gpu_hour, steps_per_gpu_hour, energy_per_gpu_hour_j``
            N T / 3600, and samples, steps and E per GPU-hour.
        ``sm_util_mean, sm_util_cv, mem_util_mean, mem_util_cv``
            Mean and coefficient of variation over a run's samples, pooled from windows: the mean
            square of a window is m^2 (1 + cv^2), weighted with its duration. No variation where
            that of a window is unknown.
        ``sm_clock_mean_mhz, power_throttle_share, cpu_cores``
            Means weighted with the windows' durations.
        ``eval_time_s, eval_energy_j``
            Means over evaluations, without the first one after an interruption.
        ``metric, loss, best_metric, epochs_trained``
            Of the last evaluation; the best, where it is known which way is better; epochs with
            warm-up.
    """
    done = runs[runs["status"] == "done"]
    settings_of = done[[*_KEPT, *(name for name in SETTINGS if name not in _KEPT)]]
    settings_of = settings_of.assign(train=_train(settings_of["train"]))
    training = epochs[epochs["phase"] == "train"]
    timed = _phase(measured_windows(training))
    timed = timed[timed["epoch_time_s"] > 0]
    evaluations = epochs[epochs["phase"] == "evaluate"]
    evaluated = _phase(evaluations[~evaluations["interrupted"].astype(bool)])[
        ["epoch_time_s", "energy_per_epoch_j"]
    ].set_axis(["eval_time_s", "eval_energy_j"], axis=1)
    final = evaluations.sort_values("epoch", kind="stable").groupby("run_id").tail(1)
    last = final.set_index("run_id")[["metric", "loss"]]
    table = settings_of[settings_of["run_id"].isin(timed.index)].reset_index(drop=True)
    trained = training.groupby("run_id")["epoch"].nunique().rename("epochs_trained")
    for columns_of in (timed, evaluated, last, _best(done, evaluations), trained):
        of_run = columns_of.reindex(table["run_id"]).reset_index(drop=True)
        table = pd.concat([table, of_run], axis=1)
    return _derived(table).sort_values([*_SORT, "run_id"], ignore_index=True)


def measured_windows(windows: pd.DataFrame) -> pd.DataFrame:
    """Return the windows from which the time and energy of an epoch are computed.

    Excluded are warm-up windows, parts of an interrupted epoch, and the first window after a run
    was resumed, because its caches are cold.
    """
    return windows[~(windows["warmup"].astype(bool) | windows["interrupted"].astype(bool))]


def with_sampled_utilisation(table: pd.DataFrame, statistics: pd.DataFrame | None) -> pd.DataFrame:
    """Return ``table`` with utilisation from the telemetry, for runs that have statistics.

    ``statistics`` are from ``store.statistics``. Their rows with ``part`` equal to ``run`` cover
    every sample of all GPUs in the training windows; ``run_metrics`` only pools window means.
    """
    if statistics is None or statistics.empty:
        return table
    of_run = statistics[statistics["part"] == "run"].set_index("run_id")
    return table.assign(
        **{
            name: table["run_id"].map(of_run[name]).fillna(table[name])
            for name in ("sm_util_mean", "sm_util_cv", "mem_util_mean", "mem_util_cv")
        }
    )


def _phase(windows: pd.DataFrame) -> pd.DataFrame:
    """Return times, counts and energies of the windows, by run."""
    # A tracked epoch that an evaluation interrupts has several windows per host.
    hosts = windows.groupby(["run_id", "epoch", "host"], sort=False)
    of_host = hosts[["duration_s", "steps"]].sum(min_count=1)
    epoch = windows.groupby(["run_id", "epoch"])
    of_epoch = of_host.groupby(level=["run_id", "epoch"]).max()
    of_epoch["samples"] = epoch["samples"].sum(min_count=1)
    by_run = of_epoch.groupby(level="run_id")
    table = pd.DataFrame(
        {
            "epoch_time_s": by_run["duration_s"].mean(),
            "epochs_timed": by_run.size(),
            "train_time_s": by_run["duration_s"].sum(),
            "samples_per_epoch": by_run["samples"].mean().astype(float),
            "steps_per_epoch": by_run["steps"].mean().astype(float),
            "samples_per_s": by_run["samples"].sum(min_count=1).astype(float)
            / by_run["duration_s"].sum(),
        }
    )
    # The part of an epoch next to an evaluation may be too short for a measurement.
    usable = windows[windows["duration_s"] >= _TELLING * hosts["duration_s"].transform("sum")]
    return table.join(energies(usable)).join(_utilisation(windows))


def energies(windows: pd.DataFrame) -> pd.DataFrame:
    """Return mean energy per epoch and what it counts; missing when any window lacks a part.

    By run, the columns of ``run_metrics`` from ``energy_per_epoch_j`` on: ``energy_scope,
    energy_source, energy_verdict`` and ``gpu_energy_per_epoch_j``.
    """
    by_run = windows.groupby("run_id", sort=True)
    columns = list(_PARTS.values())
    counted = by_run[columns].count()
    sizes = by_run.size()
    present = counted > 0
    is_complete = ((counted == 0) | counted.eq(sizes, axis=0)).all(axis=1) & present.any(axis=1)
    codes = windows["energy_verdict"].map(_VERDICTS.index).groupby(windows["run_id"]).max()
    trusted = codes < _VERDICTS.index("partial")
    usable = is_complete & trusted
    per_epoch = windows.groupby(["run_id", "epoch"])[columns].sum()
    mean_j = per_epoch.groupby(level="run_id").mean()
    # Training uses energy: a sum that is not above 0 means that the meter did not count.
    usable &= mean_j.sum(axis=1) > 0
    scope = present.apply(
        lambda row: "+".join(part for part, column in _PARTS.items() if row[column]), axis=1
    )
    mixed = by_run["energy_source"].nunique(dropna=False) > 1
    worst = codes.where(~mixed, codes.clip(lower=_VERDICTS.index("suspect")))
    gpu = trusted & (counted["gpu_energy_j"] == sizes) & (mean_j["gpu_energy_j"] > 0)
    return pd.DataFrame(
        {
            "energy_per_epoch_j": mean_j.sum(axis=1).where(usable),
            "gpu_energy_per_epoch_j": mean_j["gpu_energy_j"].where(gpu),
            "energy_scope": scope.astype(object).where(usable, None),
            "energy_source": by_run["energy_source"].first().where(~mixed, "mixed"),
            "energy_verdict": worst.map(lambda code: _VERDICTS[code]),
        }
    )


def _utilisation(windows: pd.DataFrame) -> pd.DataFrame:
    run, weight = windows["run_id"], windows["duration_s"]

    def mean(values: pd.Series) -> pd.Series:
        known_weight = weight.where(values.notna())
        return (values * weight).groupby(run).sum(min_count=1) / known_weight.groupby(run).sum()

    columns_by_name = {}
    for name in ("sm_util", "mem_util"):
        of_window, cv = windows[f"{name}_mean"], windows[f"{name}_cv"]
        columns_by_name[f"{name}_mean"] = middle = mean(of_window)
        # A window with no use has no variation; elsewhere a missing CV makes the result unknown.
        unknown = (cv.isna() & (of_window > 0)).groupby(run).any()
        square = mean(of_window**2 * (1 + cv.fillna(0.0) ** 2)).mask(unknown)
        spread = np.sqrt((square - middle**2).clip(lower=0.0))
        columns_by_name[f"{name}_cv"] = spread / middle.where(middle > 0)
    for name in ("sm_clock_mean_mhz", "power_throttle_share"):
        columns_by_name[name] = mean(windows[name])
    columns_by_name["cpu_cores"] = mean(windows["cpu_cores_mean"])
    return pd.DataFrame(columns_by_name)


def _best(runs: pd.DataFrame, evaluations: pd.DataFrame) -> pd.Series:
    """Return the best metric of each run whose metric has a known direction."""
    better = runs.set_index("run_id")["metric_name"].map(direction, na_action="ignore")
    by_run = evaluations.groupby("run_id")["metric"]
    better_way = by_run.max().index.to_series().map(better)
    best = by_run.max().where(better_way == "higher", by_run.min().where(better_way == "lower"))
    return best.rename("best_metric")


def _derived(table: pd.DataFrame) -> pd.DataFrame:
    time_s, energy_j = table["epoch_time_s"], table["energy_per_epoch_j"]
    hours = table["gpus"] * time_s / HOUR_S
    return table.assign(
        energy_per_sample_j=energy_j / table["samples_per_epoch"],
        energy_per_step_j=energy_j / table["steps_per_epoch"],
        energy_delay_js=energy_j * time_s,
        energy_delay2_js2=energy_j * time_s**2,
        energy_is=pd.Series(
            [energy_is(row) for row in table[_SAID].to_dict("records")], dtype=object
        ),
        power_per_gpu_w=table["gpu_energy_per_epoch_j"] / (table["gpus"] * time_s),
        gpu_hours_per_epoch=hours,
        samples_per_gpu_hour=table["samples_per_epoch"] / hours,
        steps_per_gpu_hour=table["steps_per_epoch"] / hours,
        energy_per_gpu_hour_j=energy_j / hours,
    )


_SAID = ["energy_scope", "energy_source", "energy_verdict"]


def energy_is(row: Mapping[Any, Any]) -> str | None:
    """Return what a run's energy counts, where it comes from, and any doubt about it."""
    if isinstance(row["energy_scope"], str):
        doubt = ", suspect" if row["energy_verdict"] == "suspect" else ""
        return f"{row['energy_scope']}, {row['energy_source']}{doubt}"
    left_out = row["energy_verdict"] in ("partial", "implausible")
    return f"{row['energy_verdict']}, left out" if left_out else None


def _train(texts: pd.Series) -> pd.Series:
    """Return the loop's settings without those that change neither time nor energy."""
    parsed = {}
    for text in texts.dropna().unique():
        settings = json.loads(text)
        parsed[text] = json.dumps(
            {name: value for name, value in settings.items() if name not in _NO_MATTER}
        )
    return texts.map(parsed, na_action="ignore")


_HIGHER = ("accuracy", "top1", "top5", "acc", "f1", "bleu", "auc", "r2", "iou", "map", "progress")
_LOWER = ("loss", "error", "mae", "mse", "rmse", "perplexity", "wer")


def direction(name: str | None) -> str | None:
    """Return whether a metric of this name is better ``higher`` or ``lower``; None if unclear.

    The name is split at what is no letter or digit; a word that is known decides, such as ``acc``
    in ``val_acc`` or ``rmse`` in ``rmse_u10``. Names with words of both kinds are unclear.
    """
    tokens = set("".join(c if c.isalnum() else " " for c in (name or "").lower()).split())
    higher, lower = not tokens.isdisjoint(_HIGHER), not tokens.isdisjoint(_LOWER)
    if higher == lower:
        return None
    return "higher" if higher else "lower"
