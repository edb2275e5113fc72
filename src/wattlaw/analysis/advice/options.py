"""The options of a job that were measured."""

from collections.abc import Callable
from typing import Any

from wattlaw.analysis.advice.option import PER, SETTING, Option, Quantity
from wattlaw.analysis.aggregate import aggregate
from wattlaw.analysis.comparable_runs import ENERGY, TIME, ComparableRuns
from wattlaw.analysis.groups import group_numbers, plain_value
from wattlaw.analysis.metrics import SETTINGS

Epochs = Callable[[dict[str, Any]], Quantity | None]


def measured_options(job: ComparableRuns, epochs: Epochs) -> list[Option]:
    """Return the settings of a job with their measured time and energy.

    ``epochs`` returns the number of units to train at a setting; None makes it no option.
    """
    evaluation = job.rows["eval_time_s"].groupby(group_numbers(job.rows, SETTINGS)).mean()
    options = []
    rows = aggregate(job.rows).assign(eval_time_s=evaluation)
    for row in rows.to_dict("records"):
        setting = row_setting(row)
        needed, time_s = epochs(setting), _measured(row, TIME)
        if needed is None or time_s is None:
            continue
        energy = _measured(row, ENERGY)
        options.append(
            Option(
                setting=setting, unit=job.unit, time_s=time_s, energy_j=energy, amount=needed,
                measured=True, repeats=int(row["n"]), energy_is=job.energy_is if energy else None,
                eval_time_s=plain_value(row["eval_time_s"]), metric=plain_value(row["metric"]),
                per={name: plain_value(row[name]) for name in PER},
            )
        )  # fmt: skip
    return options


def row_setting(row: dict[Any, Any]) -> dict[str, Any]:
    """Return the settings of a row as plain Python, a missing one as None."""
    values = {name: plain_value(row[name]) for name in SETTING}
    return values | {name: int(values[name]) for name in _COUNTS if values[name] is not None}


_COUNTS = ("nodes", "gpus", "global_batch", "local_batch", "threads_per_worker")


def _measured(row: dict[Any, Any], name: str) -> Quantity | None:
    return Quantity.of(row[name], row[f"{name}_low"], row[f"{name}_high"])
