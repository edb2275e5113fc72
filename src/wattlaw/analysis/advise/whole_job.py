"""The time of a whole job: its training with start-up, evaluation, checkpoints, and its end."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from scipy import special

from wattlaw.analysis.advise.amounts import Amounts
from wattlaw.analysis.advise.option import BESIDE_TRAINING, Option, Quantity
from wattlaw.analysis.metrics.comparable_runs import TIME, ComparableRuns
from wattlaw.analysis.metrics.estimates import LEVEL, pooled_variance
from wattlaw.analysis.metrics.result import plain
from wattlaw.analysis.metrics.run_overhead import PARTS, beside_training, nearest, parts_of_runs
from wattlaw.analysis.metrics.variation import variation

_STARTUP, _EVALUATION, _CHECKPOINTS = BESIDE_TRAINING


def whole_jobs(job: ComparableRuns, group: pd.Series, amounts: Amounts) -> Iterator[dict[str, Any]]:
    """Yield the fields of an option about the whole job, of each setting.

    The interval is that of one job on another day and other nodes: the mean's is widened by how
    single runs vary, sessions and nodes with them. ``group`` numbers the settings.
    """
    if job.unit in ("sample", "step") and all(item.mean == 1 for item in amounts.values()):
        yield from [{"whole_job_without": BESIDE_TRAINING}] * (int(group.max()) + 1)
        return
    rows = job.rows
    parts = parts_of_runs(rows, group)
    keys = zip(rows["precision"], rows["global_batch"], strict=True)
    needed = [amounts.get((plain(precision), plain(batch))) for precision, batch in keys]
    ends = {end: [getattr(of, end, None) for of in needed] for end in ("mean", "low", "high")}
    amount = pd.DataFrame(ends, index=rows.index).astype(float)
    whole_s = amount.apply(lambda epochs: rows[TIME] * epochs + beside_training(parts, epochs)[0])
    beside_s = pd.Series(beside_training(parts, amount["mean"])[0], rows.index)
    logs = (np.log(own.to_numpy(float)) for _, own in beside_s[beside_s > 0].groupby(group))
    variance, freedom = pooled_variance(logs)
    errors = np.sqrt(variance if freedom else 0.0) / np.sqrt(group.value_counts())
    # What its steps leave unknown of a run is of its training alone.
    error = rows["time_error"] * rows[TIME] * amount["mean"] / whole_s["mean"]
    varied = variation(whole_s["mean"], group, rows.assign(time_error=error))
    own_s = special.ndtri((1 + LEVEL) / 2) * np.sqrt(varied.variances.sum())
    factors = np.exp(np.hypot(varied.half, own_s))
    energy_j = pd.Series(beside_training(parts, amount["mean"])[1], rows.index)
    beside_j = energy_j.groupby(group).mean()
    means, by_setting = whole_s.groupby(group).mean(), parts.groupby(group).mean()
    most = amount["mean"].groupby(group).first()
    for at, factor in enumerate(factors):
        mean, low, high = means.loc[at]
        own = {name: float(by_setting[name][at]) for name in PARTS}
        yield {
            "whole_job_s": Quantity.of(mean, low / factor, high * factor),
            "whole_job_without": tuple(_missing(own, most[at])),
            "beside_j": float(beside_j[at]),
            "beside_error": float(errors[at]),
            "parts": own,
        }


def with_whole_job(option: Option, measured: Sequence[Option]) -> Option:
    """Return an option with the whole job: beside training, that of the nearest measured setting.

    What is beside training is as uncertain as the whole job that was measured there.
    """
    if not option.is_training:
        return option
    known = [item for item in measured if item.has_overhead]
    training = option.train_time_s
    if option.run_length or not known:
        without = () if option.run_length else BESIDE_TRAINING
        return replace(option, whole_job_s=training, whole_job_without=without)
    near = known[nearest(option.setting, [item.setting for item in known])]
    beside_s, beside_j = map(float, beside_training(near.parts, option.amount.mean))
    whole_s = near.whole_job_s or near.train_time_s
    ends = whole_s.times(beside_s / whole_s.mean)
    return replace(
        option, whole_job_s=training.plus(ends), whole_job_without=near.whole_job_without,
        beside_j=near.counts_job * beside_j, beside_error=near.beside_error, parts=near.parts,
        counts_job=near.counts_job, overhead_from=near.label,
    )  # fmt: skip


def _missing(parts: Mapping[str, Any], epochs: float) -> Iterator[str]:
    if pd.isna(parts["startup_s"]):
        yield _STARTUP
    if pd.isna(parts["between_s"]) and (epochs > 1 or pd.isna(parts["evals_per_epoch"])):
        # Evaluation that is not marked takes time between the windows.
        if not parts["evals_per_epoch"] > 0:
            yield _EVALUATION
        yield _CHECKPOINTS
