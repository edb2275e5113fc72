"""The options of a job that were run."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from wattlaw.analysis.advice.option import PER, SETTING, Option, Quantity
from wattlaw.analysis.aggregate import aggregate
from wattlaw.analysis.comparable_runs import ENERGY, TIME, ComparableRuns
from wattlaw.analysis.groups import group_numbers
from wattlaw.analysis.metrics import SETTINGS
from wattlaw.analysis.prediction.settings import TrainingSetting
from wattlaw.analysis.result import plain
from wattlaw.analysis.series import are_imported_without_nodes
from wattlaw.formatting import source_of

Epochs = Callable[[dict[str, Any]], Quantity | None]


def options_of_runs(job: ComparableRuns, epochs: Epochs) -> list[Option]:
    """Return the settings of a job with the time and energy of their runs.

    ``epochs`` returns the number of units to train at a setting; None makes it no option.
    """
    group = group_numbers(job.rows, SETTINGS)
    evaluation = job.rows["eval_time_s"].groupby(group).mean()
    options = []
    rows = aggregate(job.rows).assign(eval_time_s=evaluation)
    by_group = dict(list(job.rows[[TIME, ENERGY, "train"]].groupby(group)))
    has_nodes = not are_imported_without_nodes(job.rows)
    for number, row in enumerate(rows.to_dict("records")):
        setting = row_setting(row)
        needed, time_s = epochs(setting), _quantity(row, TIME)
        if needed is None or time_s is None:
            continue
        energy = _quantity(row, ENERGY)
        own = by_group[number]
        options.append(
            Option(
                setting=setting, unit=job.unit, time_s=time_s, energy_j=energy, amount=needed,
                source=source_of(setting["launcher"]), repeats=int(row["n"]),
                training=_training(setting, own["train"].iloc[0], job.unit, has_nodes=has_nodes),
                runs=own[[TIME, ENERGY]].to_numpy(float),
                energy_is=job.energy_is if energy else None,
                eval_time_s=plain(row["eval_time_s"]), metric=plain(row["metric"]),
                per={name: plain(row[name]) for name in PER},
            )
        )  # fmt: skip
    return options


def row_setting(row: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the settings of a row as plain Python, a missing one as None."""
    values = {name: plain(row[name]) for name in SETTING}
    return values | {name: int(values[name]) for name in _COUNTS if values[name] is not None}


_COUNTS = ("nodes", "gpus", "global_batch", "local_batch", "threads_per_worker")


def _training(
    setting: Mapping[str, Any], train: Any, unit: str, *, has_nodes: bool
) -> TrainingSetting:
    """Return a setting as the prediction model names it (``prediction.job``)."""
    nodes, gpus = setting["nodes"] if has_nodes else None, setting["gpus"]
    parts = 1 if pd.isna(train) else json.loads(train).get("gradient_accumulation", 1)
    return TrainingSetting(
        gpus, None if nodes is None else min(nodes, gpus),
        local_batch=None if unit == "step" else setting["local_batch"],
        gradient_accumulation=int(parts), precision=setting["precision"],
        power_limit_w=setting["power_limit_w"], clock_limit_mhz=setting["clock_limit_mhz"],
    )  # fmt: skip


def _quantity(row: Mapping[Any, Any], name: str) -> Quantity | None:
    return Quantity.of(row[name], row[f"{name}_low"], row[f"{name}_high"])
