"""The amount to train: a number of epochs, that of the runs or those to a target."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from wattlaw.analysis.advise.option import Quantity
from wattlaw.analysis.laws.to_target import time_to_target
from wattlaw.analysis.metrics.comparable_runs import WHY_NO_EPOCH, ComparableRuns
from wattlaw.analysis.metrics.result import Caution, plain
from wattlaw.common.errors import BadInput, NothingToRecommend, Refused

#: What the number of epochs to train depends on.
_LEARNS = ["precision", "global_batch"]
#: The epochs to train by precision and global batch; 1 where the unit is no epoch.
Amounts = Mapping[tuple[Any, Any], Quantity]


def needed_epochs(
    job: ComparableRuns, epochs: pd.DataFrame, wanted: int | None, target: float | None
) -> tuple[Amounts, tuple[Caution, ...]]:
    """Return the epochs to train, and warnings; batches without them are no options.

    Without ``wanted`` and ``target``, it is the most frequent number of epochs of the runs; of
    equally frequent ones, the largest. ``BadInput`` if epochs are below 1, or given with a target;
    ``Refused`` if no run reached the target, the direction of the metric is unknown, or the unit of
    the runs is not an epoch.
    """
    if wanted is not None and target is not None:
        raise BadInput("given epochs and a target; allowed: one of them")
    if wanted is not None and wanted < 1:
        raise BadInput(f"epochs: given {wanted}; allowed: 1 or more")
    if job.unit != "epoch" and (wanted is not None or target is not None):
        raise Refused(
            f"{'epochs' if target is None else 'target'}: what was measured is a {job.unit}, not "
            f"an epoch: {WHY_NO_EPOCH[job.unit]}"
        )
    if target is not None:
        return _epochs_to(target, job, epochs)
    count, warnings, trained = wanted or 1, [], job.rows["epochs_trained"].dropna()
    if wanted is None and job.unit == "epoch" and trained.empty:
        text = "The number of epochs that the runs trained is unknown: totals are for 1 epoch."
        warnings.append(Caution("epochs-unknown", text))
    elif wanted is None and job.unit == "epoch":
        count = int(trained.mode().max())
        text = f"The runs trained {int(trained.min())} to {int(trained.max())} epochs; totals are"
        if trained.nunique() > 1:
            text = f"{text} for {count} epochs. Set --epochs to change it."
            warnings.append(Caution("epochs-differ", text))
    exactly = Quantity(float(count), float(count), float(count))
    keys = job.rows[_LEARNS].drop_duplicates().itertuples(index=False)
    return {tuple(map(plain, key)): exactly for key in keys}, tuple(warnings)


def _epochs_to(
    target: float, job: ComparableRuns, epochs: pd.DataFrame
) -> tuple[Amounts, tuple[Caution, ...]]:
    settings = time_to_target(job.rows, epochs, target)
    settings = settings[settings["global_batch"].notna()]
    amounts, failed = {}, {}
    for row in settings.drop_duplicates(_LEARNS).to_dict("records"):
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
