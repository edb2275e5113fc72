"""Options that were measured: one per setting, repeats as mean and 95 % interval."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from wattlaw.analysis.advice.comparable_runs import ENERGY, TIME, ComparableRuns
from wattlaw.analysis.advice.option import SETTING, Option, Quantity
from wattlaw.analysis.aggregate import aggregate
from wattlaw.analysis.metrics import SETTINGS

Epochs = Callable[[dict[str, Any]], Quantity | None]


def measured_options(job: ComparableRuns, epochs: Epochs) -> list[Option]:
    """Return the settings of a job, each with what it was measured to take.

    Parameters
    ----------
    job
        Runs that compare.
    epochs
        How many epochs a setting has to train; a setting of which that is not known (None) is no
        option.
    """
    evaluation = job.rows.groupby(list(SETTINGS), dropna=False)["eval_time_s"].mean()
    options = []
    for row, eval_s in zip(
        aggregate(job.rows).to_dict("records"), evaluation.to_numpy(float), strict=True
    ):
        setting = row_setting(row)
        needed, time_s = epochs(setting), _quantity(row, TIME)
        if needed is None or time_s is None:
            continue
        energy = _quantity(row, ENERGY)
        options.append(
            Option(
                setting=setting, epoch_time_s=time_s, energy_j=energy, epochs=needed,
                measured=True, repeats=int(row["n"]), energy_is=job.energy_is if energy else None,
                eval_time_s=plain(eval_s), metric=plain(row["metric"]),
            )
        )  # fmt: skip
    return options


def row_setting(row: dict[Any, Any]) -> dict[str, Any]:
    """Return the settings of a row as plain Python, a missing one as None."""
    values = {name: plain(row[name]) for name in SETTING}
    return values | {name: int(values[name]) for name in _COUNTS if values[name] is not None}


_COUNTS = ("nodes", "gpus", "global_batch", "local_batch", "threads_per_worker")


def plain(value: Any) -> Any:
    """Return a value as plain Python, a missing one as None."""
    if value is None or pd.isna(value):
        return None
    return value.item() if isinstance(value, np.generic) else value


def _quantity(row: dict[Any, Any], name: str) -> Quantity | None:
    return Quantity.of(row[name], row[f"{name}_low"], row[f"{name}_high"])
