"""From windows to one row per run.

Training time and energy come from training windows that are neither warm-up nor interrupted.
Evaluation never enters them; it has columns of its own. What was not measured stays missing.

What was measured is an epoch, a block of optimizer steps, or a whole process (a run). Times and
energies are per epoch, sample and step as far as they are known, and each says its unit.
"""

import json
import re
from typing import Any

import numpy as np
import pandas as pd

from wattlaw.analysis.metrics.run_energy import energies, energy_is
from wattlaw.analysis.metrics.run_overhead import overheads
from wattlaw.analysis.metrics.time_errors import are_short, time_errors
from wattlaw.common.scopes import OUTERMOST
from wattlaw.study.command import command_of
from wattlaw.study.sources import TRAINING

SETTINGS = (
    "workload", "options", "train", "hardware", "launcher", "nodes", "gpus", "global_batch",
    "local_batch", "precision", "power_limit_w", "clock_limit_mhz", "power_profile",
    "dataset_fraction", "threads_per_worker", "emulated_gpus", "layout", "unit", "run_length",
)  # fmt: skip
#: Units of work, in the order of preference.
UNITS = ("epoch", "sample", "step", "run")
#: A window shorter than this share of its epoch is ignored for the energy of the epoch.
_LEAST_SHARE = 0.01
_KEPT = (
    "run_id", "study", "repeat", "metric_name", "parameters", "flops_per_sample", "parallelism",
    "workers_cooperate", "dataset_samples", "gradient_bytes",
    "loader_workers", "measure_seconds", "warmup_steps", "global_batch_declared", "network",
    "software",
)  # fmt: skip
_DERIVED = ("unit", "run_length")
#: Settings of the training loop that change neither time nor energy of an epoch.
_NO_MATTER = ("seed", "checkpoint_every", "save_model")
_SORT = ("workload", "hardware", "gpus", "global_batch", "repeat")
HOUR_S = 3600.0
_DAY_NS = 86_400 * 10**9


def run_metrics(
    runs: pd.DataFrame, epochs: pd.DataFrame, energy_scope: str = OUTERMOST
) -> pd.DataFrame:
    """Return one row per done run that has a measured training window of more than 0 s.

    ``runs`` and ``epochs`` are tables of one or more stores, columns as in ``store.schema``;
    ``energy_scope`` is what the energies count, as in ``energies``. The columns are those of
    ``SETTINGS`` and ``_KEPT`` and, per run, with N the GPUs:

    - ``unit, time_s, energy_j``: training time T and energy E of one unit, the first of ``UNITS``
      that is known for all runs of the workload, or else for most; a run of which it is not known
      keeps its own.
    - ``basis, run_length``: whether ``epochs``, blocks of ``steps`` or a whole ``run`` was
      measured. A whole run includes start-up, so it has a length, such as ``3 epochs``: others do
      not compare.
    - ``epoch_time_s, time_per_sample_s, step_time_s``: means over measured windows, of the slowest
      host; an epoch of measured steps is a sample's time times the samples of the data set.
    - ``train_time_s, train_energy_j``: the sums over all measured windows;
      ``samples_per_epoch, steps_per_epoch, samples_per_s`` of all hosts.
    - ``energy_per_epoch_j, energy_per_sample_j, energy_per_step_j``: sum over hosts; missing if a
      window has no energy or only that of a part of its time, and if the sum is not above 0.
    - ``energy_delay_js``: E T; ``energy_requested``: ``energy_scope``.
    - ``energy_scope, energy_source, energy_verdict, energy_is``: what is counted, its source
      (``mixed`` when windows differ), the worst verdict, and the three as one text.
    - ``gpu_energy_j, gpu_energy_per_epoch_j, power_per_gpu_w``: the GPUs' part, and its mean power.
    - ``node_energy_j, energy_per_node_without_gpu_j``: that of all nodes, also by a meter too slow
      for ``energy_scope``; of a node without its GPUs.
    - ``gpu_hours``: N T / 3600; ``samples_per_gpu_hour, steps_per_gpu_hour,
      energy_per_gpu_hour_j``: samples, steps and E over it.
    - ``sm_util_mean, sm_util_cv, mem_util_mean, mem_util_cv``: pooled from windows with their
      durations as weights: the mean square of a window is m^2 (1 + cv^2).
    - ``sm_clock_mean_mhz, power_throttle_share, cpu_cores, data_wait_share, communication_share,
      rank_wait_share``: means weighted with the windows' durations; shares of the training time.
    - ``eval_time_s, eval_energy_j``: means over evaluations, without those after an interruption.
    - ``startup_s, end_s``: from the start of the run to its first window, with what the warm-up
      takes more than later training; and from the last window to the end of the run.
    - ``between_s, evals_per_epoch``: time in no window per epoch after the first, such as for
      checkpoints; and the share of epochs with an evaluation. These four are missing for imports,
      simulations and several attempts; where steps were measured, only ``startup_s`` is known, and
      none of them of a whole process.
    - ``time_error``: the relative standard error of the mean time of the run's steps, by blocks of
      steps, widened by Student's t where these are few; ``is_short``: ``time_errors.are_short``.
    - ``hosts, session``: the hosts of the measured windows, separated by commas, and their first
      day since 1970 (UTC).
    - ``metric, loss, epochs_trained``: of the last evaluation; epochs with warm-up, missing where
      steps were measured.
    """
    done = runs[runs["status"] == "done"]
    names = [name for name in SETTINGS if name not in _DERIVED]
    settings_of = done[[*_KEPT, *names]].assign(train=_train(done["train"]), lasts=_lengths(done))
    training = training_windows(epochs)
    measured = measured_windows(training)
    timed = _phase(measured, energy_scope).join(_utilisation(measured))
    hosts = measured[["run_id", "host"]].drop_duplicates().sort_values(["run_id", "host"])
    place = pd.DataFrame({
        "hosts": hosts.groupby("run_id")["host"].agg(",".join),
        "session": measured["start_ns"].groupby(measured["run_id"]).min() // _DAY_NS,
    })  # fmt: skip
    timed = timed[timed["block_time_s"] > 0].join(place).join(time_errors(measured))
    evaluations = epochs[epochs["phase"] == "evaluate"]
    evaluated = pd.DataFrame(columns=["block_time_s", "block_energy_j"], dtype=float)
    if len(whole := evaluations[~evaluations["interrupted"].astype(bool)]):
        evaluated = _phase(whole, energy_scope)[[*evaluated]]
    evaluated = evaluated.set_axis(["eval_time_s", "eval_energy_j"], axis=1)
    in_order = evaluations.sort_values("epoch", kind="stable").set_index("run_id")
    last = in_order.loc[~in_order.index.duplicated(keep="last"), ["metric", "loss"]]
    table = settings_of[settings_of["run_id"].isin(timed.index)].reset_index(drop=True)
    by_run = training.groupby("run_id")
    trained = pd.DataFrame(
        {"basis": by_run["phase"].first().map(TRAINING), "epochs_seen": by_run["epoch"].nunique()}
    )
    # The epochs that a command was started with: {epochs} is in its arguments.
    takes = {
        text: any("{epochs}" in re.sub(r"{{|}}", "", word) for word in command_of(text))
        for text in done["options"].unique()
    }
    asked = done["epochs"].where(done["options"].map(takes).astype(bool)).astype(float)
    asked = asked.set_axis(done["run_id"]).rename("epochs_asked")
    beside = overheads(done, training, evaluations, timed)
    known = (timed, evaluated, last, trained, asked, beside)
    of_runs = [part.reindex(table["run_id"]).reset_index(drop=True) for part in known]
    table = pd.concat([table, *of_runs], axis=1)
    table = _derived(_in_units(table)).drop(columns=["lasts", *_BLOCK])
    table = table.assign(energy_requested=energy_scope, is_short=are_short(table))
    return table.sort_values([*_SORT, "run_id"], ignore_index=True)


def missing_energy(table: pd.DataFrame) -> str | None:
    rows = table[table["energy_requested"] != OUTERMOST]
    missing = int(rows["energy_j"].isna().sum())
    if not missing:
        return None
    scope = rows["energy_requested"].iloc[0]
    return (
        f"{missing} of {len(rows)} runs have no energy of scope {scope}: it was not measured or is "
        "left out, and no other scope replaces it"
    )


def training_windows(windows: pd.DataFrame) -> pd.DataFrame:
    """Return the training windows, of each run those of the first of ``TRAINING`` that it has.

    Blocks of steps and whole processes, which are no epochs, get epoch 0.
    """
    training = windows[windows["phase"].isin(list(TRAINING))]
    rank = training["phase"].map(list(TRAINING).index)
    kept = training[rank == rank.groupby(training["run_id"]).transform("min")]
    return kept.assign(epoch=kept["epoch"].where(kept["phase"] == "train", 0))


def measured_windows(windows: pd.DataFrame) -> pd.DataFrame:
    """Return the windows from which the time and energy of an epoch are computed.

    Excluded are warm-up windows, parts of an interrupted epoch, and the first window after a run
    was resumed, because its caches are cold.
    """
    return windows[~(windows["warmup"].astype(bool) | windows["interrupted"].astype(bool))]


def with_sampled_utilisation(table: pd.DataFrame, statistics: pd.DataFrame | None) -> pd.DataFrame:
    """Return ``table`` with utilisation from all samples of the telemetry, where it is known.

    ``statistics`` are from ``store.statistics``; ``run_metrics`` only pools window means.
    """
    if statistics is None or statistics.empty:
        return table
    of_run = statistics[statistics["part"] == "run"].set_index("run_id")
    names = ("sm_util_mean", "sm_util_cv", "mem_util_mean", "mem_util_cv")
    sampled = {name: table["run_id"].map(of_run[name]).fillna(table[name]) for name in names}
    return table.assign(**sampled)


def _phase(windows: pd.DataFrame, energy_scope: str) -> pd.DataFrame:
    # A tracked epoch that an evaluation interrupts has several windows per host.
    hosts = windows.groupby(["run_id", "epoch", "host"], sort=False)
    of_host = hosts[["duration_s", "steps"]].sum(min_count=1)
    epoch = windows.groupby(["run_id", "epoch"])
    of_epoch = of_host.groupby(level=["run_id", "epoch"]).max()
    of_epoch["samples"] = epoch["samples"].sum(min_count=1)
    by_run = of_epoch.astype(float).groupby(level="run_id")
    means, train_time_s = by_run.mean(), by_run["duration_s"].sum()
    table = pd.DataFrame(
        {
            "block_time_s": means["duration_s"],
            "blocks": by_run.size(),
            "train_time_s": train_time_s,
            "samples": means["samples"],
            "steps": means["steps"],
            "samples_per_s": by_run["samples"].sum(min_count=1) / train_time_s,
        }
    )
    # The part of an epoch next to an evaluation may be too short for a measurement.
    usable = windows[windows["duration_s"] >= _LEAST_SHARE * hosts["duration_s"].transform("sum")]
    return table.join(energies(usable, energy_scope))


def _utilisation(windows: pd.DataFrame) -> pd.DataFrame:
    run, weight = windows["run_id"], windows["duration_s"]
    columns, unknown = {}, {}
    for name in ("sm_util", "mem_util"):
        of_window, cv = windows[f"{name}_mean"], windows[f"{name}_cv"]
        columns[f"{name}_mean"] = of_window
        columns[f"{name}_cv"] = of_window**2 * (1 + cv.fillna(0.0) ** 2)
        # A window with no use has no variation; elsewhere a missing CV makes the result unknown.
        unknown[name] = cv.isna() & (of_window > 0)
    columns |= {name: windows[name] for name in ("sm_clock_mean_mhz", "power_throttle_share")}
    for name in ("data_wait", "communication", "rank_wait"):
        columns[f"{name}_share"] = windows[f"{name}_s"] / weight.where(weight > 0)
    values = pd.DataFrame(columns | {"cpu_cores": windows["cpu_cores_mean"]}).astype(float)
    weights = values.notna().mul(weight, axis=0)
    sums = values.mul(weight, axis=0).groupby(run).sum(min_count=1)
    means = sums / weights.groupby(run).sum()
    is_unknown = pd.DataFrame(unknown).groupby(run).any()
    for name in unknown:
        middle, square = means[f"{name}_mean"], means[f"{name}_cv"].mask(is_unknown[name])
        spread = np.sqrt((square - middle**2).clip(lower=0.0))
        means[f"{name}_cv"] = spread / middle.where(middle > 0)
    return means


#: Columns of what was measured: an epoch, a block of steps, or a process.
_BLOCK = (
    "block_time_s", "block_energy_j", "block_gpu_energy_j", "block_node_energy_j", "blocks",
    "samples", "steps", "epochs_seen", "epochs_asked",
)  # fmt: skip


def _lengths(runs: pd.DataFrame) -> pd.Series:
    lengths = pd.Series("a process", index=runs.index)
    columns = {"epochs": "epochs", "measure_seconds": "s", "measure_steps": "steps"}
    for name, word in columns.items():
        texts = {value: f"{value:g} {word}" for value in runs[name].dropna().unique()}
        values = runs[name].map(texts)
        lengths = values.where(values.notna(), lengths)
    return lengths


def _in_units(table: pd.DataFrame) -> pd.DataFrame:
    is_epochs, is_run = table["basis"] == "epochs", table["basis"] == "run"
    asked = table["epochs_asked"].where(is_run)
    # Steps of a known global batch are samples; in an epoch, the last batch may be smaller.
    samples = table["samples"].where(
        table["samples"].notna() | is_epochs, table["steps"] * table["global_batch"]
    )
    of_data = table["dataset_samples"].astype(float) * table["dataset_fraction"]
    samples = samples.where(samples.notna() | ~is_run, asked * of_data)
    per_epoch = samples.where(is_epochs, of_data.where(of_data.notna(), samples / asked))
    epochs = asked.where(asked.notna(), samples / per_epoch).where(~is_epochs, 1.0)
    # How many of each unit a block is.
    amounts = pd.DataFrame(
        {"epoch": epochs, "sample": samples, "step": table["steps"], "run": is_run.astype(float)}
    ).astype(float)
    amounts = amounts.where(amounts > 0)
    known = amounts.notna()
    of_workload = known.groupby(table["workload"], dropna=False).transform("sum")
    own, common = known.idxmax(axis=1), of_workload.idxmax(axis=1)
    unit = own.where(~_at(known, common).astype(bool), common).astype(object)
    columns: dict[str, Any] = {}
    blocks = _BLOCK[:4]
    for ends, amount in (
        (("time_s", "energy_j", "gpu_energy_j", "node_energy_j"), _at(amounts, unit)),
        (
            ("epoch_time_s", "energy_per_epoch_j", "gpu_energy_per_epoch_j"),
            amounts["epoch"],
        ),
        (("time_per_sample_s", "energy_per_sample_j"), amounts["sample"]),
        (("step_time_s", "energy_per_step_j"), amounts["step"]),
    ):  # fmt: skip
        columns |= {name: table[block] / amount for name, block in zip(ends, blocks, strict=False)}
    speed = table["samples_per_s"].where(is_epochs, samples / table["block_time_s"])
    return table.assign(
        unit=unit,
        run_length=table["lasts"].astype(object).where(is_run, None),
        **columns,
        samples_per_epoch=per_epoch,
        steps_per_epoch=amounts["step"] / amounts["epoch"],
        samples_per_s=speed,
        epochs_trained=table["epochs_seen"].where(is_epochs, asked),
        train_energy_j=table["block_energy_j"] * table["blocks"],
    )


_UNIT_OF = {
    "epoch_time_s": "epoch", "energy_per_epoch_j": "epoch", "gpu_energy_per_epoch_j": "epoch",
    "time_per_sample_s": "sample", "energy_per_sample_j": "sample",
    "step_time_s": "step", "energy_per_step_j": "step",
}  # fmt: skip
_IN_UNIT = (
    "time_s", "energy_j", "gpu_energy_j", "node_energy_j", "energy_per_node_without_gpu_j",
    "gpu_hours", "energy_delay_js",
)  # fmt: skip


def unit_of(column: str, unit: str) -> str | None:
    """Return the unit of a column of ``run_metrics`` in rows of ``unit``; None if it has none."""
    return unit if column in _IN_UNIT else _UNIT_OF.get(column)


def _at(frame: pd.DataFrame, names: pd.Series) -> pd.Series:
    columns = frame.columns.get_indexer(pd.Index(names))
    return pd.Series(frame.to_numpy()[np.arange(len(frame)), columns], index=frame.index)


def _derived(table: pd.DataFrame) -> pd.DataFrame:
    time_s, energy_j = table["time_s"], table["energy_j"]
    hours = table["gpus"] * time_s / HOUR_S
    without_gpu_j = table["node_energy_j"] - table["gpu_energy_j"]
    # Computed once for each combination of its columns.
    columns = ["energy_scope", "energy_source", "energy_verdict"]
    number = table.groupby(columns, dropna=False, sort=False).ngroup()
    kinds = [energy_is(row) for row in table.loc[~number.duplicated(), columns].to_dict("records")]
    return table.assign(
        energy_per_node_without_gpu_j=without_gpu_j.where(without_gpu_j > 0) / table["nodes"],
        energy_delay_js=energy_j * time_s,
        energy_is=np.array([*kinds, None], dtype=object)[number.to_numpy()],
        power_per_gpu_w=table["gpu_energy_j"] / (table["gpus"] * time_s),
        gpu_hours=hours,
        samples_per_gpu_hour=HOUR_S / (table["gpus"] * table["time_per_sample_s"]),
        steps_per_gpu_hour=HOUR_S / (table["gpus"] * table["step_time_s"]),
        energy_per_gpu_hour_j=energy_j / hours,
    )


#: Why there is no law of an energy whose ``energy_is`` has ``ESTIMATED``.
ESTIMATED = "estimated"
WHY_NO_LAW = "its energy is computed from time (busy cores x assumed watts): that has no law"


def _train(texts: pd.Series) -> pd.Series:
    """Return the loop's settings without those that change neither time nor energy."""
    relevant = {
        text: json.dumps({k: v for k, v in json.loads(text).items() if k not in _NO_MATTER})
        for text in texts.dropna().unique()
    }
    return texts.map(relevant, na_action="ignore")


_HIGHER = ("accuracy", "top1", "top5", "acc", "f1", "bleu", "auc", "r2", "iou", "map", "progress")
_LOWER = ("loss", "error", "mae", "mse", "rmse", "perplexity", "wer")


def direction(name: str | None) -> str | None:
    """Return whether a metric is better ``higher`` or ``lower``, by a known word of its name.

    None without such a word (``acc`` in ``val_acc``), or with words of both kinds.
    """
    tokens = set("".join(c if c.isalnum() else " " for c in (name or "").lower()).split())
    higher, lower = not tokens.isdisjoint(_HIGHER), not tokens.isdisjoint(_LOWER)
    if higher == lower:
        return None
    return "higher" if higher else "lower"
