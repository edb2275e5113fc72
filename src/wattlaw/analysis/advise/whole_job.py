"""What a job trains, and its time: training with start-up, evaluation, checkpoints, its end."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from scipy import special

from wattlaw.analysis.advise.option import BESIDE_TRAINING, Option, Quantity
from wattlaw.analysis.laws.batch_effects import epochs_by_batch
from wattlaw.analysis.metrics.comparable_runs import TIME, WHY_NO_EPOCH, ComparableRuns
from wattlaw.analysis.metrics.estimates import LEVEL, pooled_variance
from wattlaw.analysis.metrics.result import Caution, plain
from wattlaw.analysis.metrics.run_overhead import PARTS, beside_training, nearest, parts_of_runs
from wattlaw.analysis.metrics.variation import variation
from wattlaw.common.errors import BadInput, NothingToRecommend, Refused
from wattlaw.study.command import command_of, epochs_argument
from wattlaw.study.question import Question

_STARTUP, _EVALUATION, _CHECKPOINTS = BESIDE_TRAINING
#: What the number of epochs to train depends on.
_LEARNS = ["precision", "global_batch"]
#: The units to train by precision and global batch; 1 where how many is not known.
Amounts = Mapping[tuple[Any, Any], Quantity]


def needed_epochs(
    job: ComparableRuns, epochs: pd.DataFrame, question: Question
) -> tuple[Amounts, tuple[Caution, ...]]:
    """Return the epochs (or samples) to train, and warnings; batches without are no options.

    Where the question names no length, it is the most frequent number of epochs of the runs; of
    equally frequent ones, the largest; and where that is unknown, what the command says.
    ``BadInput`` if epochs are below 1, or given with a target; ``Refused`` if no run reached the
    target, the direction of the metric is unknown, or the unit of the runs is not an epoch.
    """
    wanted, target = question.epochs, question.target
    if sum(each is not None for each in (wanted, target, question.samples)) > 1:
        raise BadInput("given several of epochs, total_samples and a target; allowed: one of them")
    if wanted is not None and wanted < 1:
        raise BadInput(f"epochs: given {wanted}; allowed: 1 or more")
    if job.unit != "epoch" and (wanted is not None or question.is_by_batch):
        raise Refused(
            f"{'epochs' if target is None else 'target'}: what was measured is a {job.unit}, not "
            f"an epoch: {WHY_NO_EPOCH[job.unit]}"
        )
    if question.is_bounded and job.unit in ("sample", "step") and question.samples is None:
        workload = job.rows["workload"].iloc[0]
        raise Refused(
            f"{workload!r} has times of one {job.unit}, so how long a training takes is not known: "
            f"{WHY_NO_EPOCH[job.unit]}"
        )
    if target is not None:
        return _epochs_to(target, job, epochs)
    keys = [tuple(map(plain, key)) for key in job.rows[_LEARNS].drop_duplicates().to_numpy()]
    if by_batch := question.epochs_by_batch:
        return {key: Quantity(*[by_batch[key[1]]] * 3) for key in keys if key[1] in by_batch}, ()
    if question.samples is not None:
        if job.unit not in ("epoch", "sample"):
            why = WHY_NO_EPOCH[job.unit]
            raise Refused(f"total_samples: the samples of a {job.unit} are unknown: {why}")
        of_unit = 1.0 if job.unit == "sample" else float(job.rows["samples_per_epoch"].mean())
        units = question.samples / of_unit
        return dict.fromkeys(keys, Quantity(units, units, units)), ()
    count, warnings, trained = wanted or 1, [], job.rows["epochs_trained"].dropna()
    said = epochs_argument(command_of(job.rows["options"].iloc[0]))
    if wanted is None and job.unit == "epoch" and trained.empty and said is not None:
        count = int(said.value or 1)
    elif wanted is None and job.unit == "epoch" and trained.empty:
        text = "The number of epochs is unknown: totals are for 1 epoch."
        warnings.append(Caution("epochs-unknown", text))
    elif wanted is None and job.unit == "epoch":
        count = int(trained.mode().max())
        text = f"The runs trained {int(trained.min())} to {int(trained.max())} epochs; totals are"
        if trained.nunique() > 1:
            text = f"{text} for {count} epochs. Set --epochs to change it."
            warnings.append(Caution("epochs-differ", text))
    exactly = Quantity(float(count), float(count), float(count))
    return dict.fromkeys(keys, exactly), tuple(warnings)


def _epochs_to(
    target: float, job: ComparableRuns, epochs: pd.DataFrame
) -> tuple[Amounts, tuple[Caution, ...]]:
    amounts, failed = {}, {}
    for row in epochs_by_batch(job.rows, epochs, target).to_dict("records"):
        count = Quantity.of(row["epochs"], row["epochs_low"], row["epochs_high"])
        if count is not None:
            amounts[tuple(row[name] for name in _LEARNS)] = count
        else:
            failed[row["global_batch"]] = str(row["why"])
    if not amounts:
        raise NothingToRecommend(
            f"no global batch reached a metric of {target:g} in all runs; train longer or choose "
            "an easier target"
        )
    warnings = [
        Caution("target-not-reached", f"Global batch {batch:g} is excluded: {why}.")
        for batch, why in sorted(failed.items())
    ]
    if without := job.rows.loc[job.rows["global_batch"].isna(), "run_id"].nunique():
        text = f"{without} runs without a known global batch are excluded."
        warnings.append(Caution("batch-unknown", text))
    return amounts, tuple(warnings)


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
