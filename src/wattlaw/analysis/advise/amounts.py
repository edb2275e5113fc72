"""The amount to train: a number of epochs, that of the runs or those to a target."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from wattlaw.analysis.advise.option import Quantity
from wattlaw.analysis.laws.to_target import epochs_by_batch
from wattlaw.analysis.metrics.comparable_runs import WHY_NO_EPOCH, ComparableRuns
from wattlaw.analysis.metrics.result import Caution, plain
from wattlaw.common.errors import BadInput, NothingToRecommend, Refused
from wattlaw.study.command import command_of, epochs_argument
from wattlaw.study.question import Question

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
