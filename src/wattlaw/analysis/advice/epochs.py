"""The epochs to train at a setting: those of the runs, a number, or those to a target."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from wattlaw.analysis.advice.option import Quantity
from wattlaw.analysis.comparable_runs import WHY_NO_EPOCH, ComparableRuns
from wattlaw.analysis.result import Caution
from wattlaw.analysis.to_target import time_to_target
from wattlaw.errors import BadInput, Refused


@dataclass(frozen=True)
class EpochsNeeded:
    """The epochs to train: a function of the setting (None: unknown), and warnings.

    If the unit is not an epoch, the number is 1.
    """

    for_setting: Callable[[dict[str, Any]], Quantity | None]
    warnings: tuple[Caution, ...]


def needed_epochs(
    job: ComparableRuns, epochs: pd.DataFrame, wanted: int | None, target: float | None
) -> EpochsNeeded:
    """Return the epochs to train.

    Without ``wanted`` and ``target``, it is the most frequent number of epochs of the runs; of
    equally frequent ones, the largest.

    Raises
    ------
    BadInput
        Epochs below 1, or both epochs and a target are given.
    Refused
        No run reached the target, the direction of the metric is unknown, or the unit of the runs
        is not an epoch.
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
    if job.unit != "epoch":
        return _fixed(1, ())
    if target is not None:
        return _to_target(job, epochs, target)
    if wanted is not None:
        return _fixed(wanted, ())
    trained = job.rows["epochs_trained"].dropna()
    if trained.empty:
        text = "The number of epochs that the runs trained is unknown: totals are for 1 epoch."
        return _fixed(1, (Caution("epochs-unknown", text),))
    most = int(trained.mode().max())
    trained_text = f"The runs trained {int(trained.min())} to {int(trained.max())} epochs"
    text = f"{trained_text}; totals are for {most} epochs. Set --epochs to change it."
    return _fixed(most, () if trained.nunique() == 1 else (Caution("epochs-differ", text),))


def _fixed(count: int, warnings: tuple[Caution, ...]) -> EpochsNeeded:
    exactly = Quantity(float(count), float(count), float(count))
    return EpochsNeeded(lambda _: exactly, warnings)


def _to_target(job: ComparableRuns, epochs: pd.DataFrame, target: float) -> EpochsNeeded:
    """Return the epochs that the runs of a global batch took to the target."""
    settings = time_to_target(job.rows, epochs, target)
    settings = settings[settings["global_batch"].notna()]
    by_batch, failed = {}, {}
    for row in settings.drop_duplicates(_LEARNS).to_dict("records"):
        count = Quantity.of(row["epochs"], row["epochs_low"], row["epochs_high"])
        if count is not None:
            by_batch[tuple(row[name] for name in _LEARNS)] = count
        else:
            failed[row["global_batch"]] = str(row["why"])
    if not by_batch:
        raise Refused(
            f"at no global batch did all runs reach a metric of {target:g}; train longer or choose "
            "an easier target"
        )
    warnings = [
        Caution("target-not-reached", f"Global batch {batch:g} is excluded: {why}.")
        for batch, why in sorted(failed.items())
    ]
    without = job.rows.loc[job.rows["global_batch"].isna(), "run_id"].nunique()
    if without:
        text = f"{without} runs without a known global batch are excluded."
        warnings.append(Caution("batch-unknown", text))
    return EpochsNeeded(
        lambda setting: by_batch.get(tuple(setting[name] for name in _LEARNS)),
        tuple(warnings),
    )


_LEARNS = ["precision", "global_batch"]
