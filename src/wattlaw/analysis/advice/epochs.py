"""For how many epochs a setting has to train: as asked, as the runs did, or to a target."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from wattlaw.analysis.advice.comparable_runs import ComparableRuns
from wattlaw.analysis.advice.option import Quantity
from wattlaw.analysis.to_target import time_to_target
from wattlaw.errors import BadInput, Refused


@dataclass(frozen=True)
class EpochsNeeded:
    """The epochs of a setting (None: not known), in words, and what to be warned of."""

    for_setting: Callable[[dict[str, Any]], Quantity | None]
    description: str
    warnings: tuple[str, ...]


def needed_epochs(
    job: ComparableRuns, epochs: pd.DataFrame, wanted: int | None, target: float | None
) -> EpochsNeeded:
    """Return the epochs to train.

    Without ``asked`` and ``target`` they are what most runs trained, of several the most.

    Raises
    ------
    BadInput
        Epochs below 1, or both epochs and a target are given.
    Refused
        No run reached the target, or it is not known which way the metric is better.
    """
    if wanted is not None and target is not None:
        raise BadInput("given epochs and a target; allowed: one of them")
    if wanted is not None and wanted < 1:
        raise BadInput(f"epochs: given {wanted}; allowed: 1 or more")
    if target is not None:
        return _to_target(job, epochs, target)
    if wanted is not None:
        return _fixed(wanted, ())
    trained = job.rows["epochs_trained"].dropna()
    if trained.empty:
        return _fixed(
            1, ("The number of epochs that the runs trained is unknown: totals are for 1 epoch.",)
        )
    most = int(trained.mode().max())
    if trained.nunique() == 1:
        return _fixed(most, ())
    warning = (
        f"The runs trained {int(trained.min())} to {int(trained.max())} epochs; totals are for "
        f"{most} epochs. Set --epochs to change it."
    )
    return _fixed(most, (warning,))


def _fixed(count: int, warnings: tuple[str, ...]) -> EpochsNeeded:
    exactly = Quantity(float(count), float(count), float(count))
    return EpochsNeeded(lambda _: exactly, f"{count} epoch{'s' * (count > 1)}", warnings)


def _to_target(job: ComparableRuns, epochs: pd.DataFrame, target: float) -> EpochsNeeded:
    """Return the epochs that the runs of a global batch took to the target."""
    settings = time_to_target(job.rows, epochs, target)
    settings = settings[settings["global_batch"].notna()]
    by_batch: dict[tuple[Any, Any], Quantity] = {}
    failed: dict[Any, str] = {}
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
        f"Global batch {batch:g} is excluded: {why}." for batch, why in sorted(failed.items())
    ]
    without = job.rows.loc[job.rows["global_batch"].isna(), "run_id"].nunique()
    if without:
        warnings.append(f"{without} runs without a known global batch are excluded.")
    return EpochsNeeded(
        lambda setting: by_batch.get(tuple(setting[name] for name in _LEARNS)),
        f"the epochs to a metric of {target:g}, by global batch",
        tuple(warnings),
    )


_LEARNS = ["precision", "global_batch"]
