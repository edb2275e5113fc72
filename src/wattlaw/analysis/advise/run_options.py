"""The options of a job that were run, the epochs to train, and what savings refer to."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, sqrt
from typing import Any

import numpy as np
import pandas as pd

from wattlaw.analysis.advise.option import PER, SETTING, Option, Quantity
from wattlaw.analysis.laws.limit_effects import POWER_SETTINGS
from wattlaw.analysis.laws.series import are_imported_without_nodes
from wattlaw.analysis.laws.to_target import time_to_target
from wattlaw.analysis.metrics.comparable_runs import ENERGY, TIME, WHY_NO_EPOCH, ComparableRuns
from wattlaw.analysis.metrics.estimates import Pooled, pool, t_interval
from wattlaw.analysis.metrics.groups import aggregate, group_numbers
from wattlaw.analysis.metrics.metrics import SETTINGS
from wattlaw.analysis.metrics.result import Caution, plain
from wattlaw.analysis.predict.job import Job, setting_of_row
from wattlaw.common.errors import BadInput, NothingToRecommend, Refused
from wattlaw.study.footprint import Footprint
from wattlaw.study.sources import source_of

Epochs = Callable[[dict[str, Any]], Quantity | None]
#: Runs that differ in these columns inform different models.
SEPARATE = ("hardware", "launcher", "threads_per_worker", "power_profile")
#: With fewer repeats beyond the first, the interval of a setting uses the spread of all settings.
_ENOUGH_FREEDOM = 3


def options_of_runs(
    job: ComparableRuns,
    epochs: Epochs,
    models: Mapping[tuple[Any, ...], Job] = {},
    footprint: Footprint | None = None,
) -> list[Option]:
    """Return the settings of a job with the time and energy of their runs.

    ``epochs`` returns the number of units to train at a setting; None makes it no option.
    ``models`` are of ``predicted.models_of``.
    """
    group = group_numbers(job.rows, SETTINGS)
    evaluation = job.rows["eval_time_s"].groupby(group).mean()
    trained = job.rows["epochs_trained"].groupby(group).max()
    options = []
    rows = aggregate(job.rows).assign(eval_time_s=evaluation, epochs_trained=trained)
    by_group = dict(list(job.rows[[TIME, ENERGY]].groupby(group)))
    has_nodes = not are_imported_without_nodes(job.rows)
    spreads = {name: _pooled(own[name] for own in by_group.values()) for name in (TIME, ENERGY)}
    for number, row in enumerate(rows.to_dict("records")):
        setting = row_setting(row)
        needed, time_s = epochs(setting), _quantity(row, TIME, spreads)
        if needed is None or time_s is None:
            continue
        energy = _quantity(row, ENERGY, spreads)
        own = by_group[number]
        options.append(
            Option(
                setting=setting, unit=job.unit, time_s=time_s, energy_j=energy, amount=needed,
                source=source_of(setting["launcher"]), repeats=int(row["n"]),
                training=setting_of_row(row if has_nodes else row | {"nodes": None}, job.unit),
                runs=own[[TIME, ENERGY]].to_numpy(float),
                energy_is=job.energy_is if energy else None,
                epochs_trained=plain(row["epochs_trained"]),
                eval_time_s=plain(row["eval_time_s"]), metric=plain(row["metric"]),
                per={name: plain(row[name]) for name in PER}, footprint=footprint,
                model=models.get(tuple(setting[name] for name in SEPARATE)),
            )
        )  # fmt: skip
    return options


def row_setting(row: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the settings of a row as plain Python, a missing one as None."""
    values = {name: plain(row[name]) for name in SETTING}
    return values | {name: int(values[name]) for name in _COUNTS if values[name] is not None}


_COUNTS = ("nodes", "gpus", "global_batch", "local_batch", "threads_per_worker")


def _pooled(values: Iterable[pd.Series]) -> Pooled:
    logs = (np.log(own[own > 0].to_numpy(float)) for own in values)
    return pool(dict(enumerate(own for own in logs if len(own))))


def _quantity(row: Mapping[Any, Any], name: str, spreads: Mapping[str, Pooled]) -> Quantity | None:
    """Return a quantity with the interval of its mean.

    Few repeats do not tell their spread: t with one degree of freedom is 12.7. Their interval uses
    that of all settings.
    """
    mean, repeats, spread = row[name], int(row["n"]), spreads[name]
    if 1 < repeats <= _ENOUGH_FREEDOM and spread.freedom >= repeats:
        half = t_interval(0.0, sqrt(spread.variance / repeats), spread.freedom)[1]
        return Quantity.of(mean, mean * exp(-half), mean * exp(half))
    return Quantity.of(mean, row[f"{name}_low"], row[f"{name}_high"])


def _size(text: str) -> tuple[int, str]:
    return len(text), text


def baseline_of(options: Sequence[Option], values: Mapping[str, Any]) -> Option:
    """Return the option of runs that has some settings.

    A limit that is not named means no limit, if settings with the same names differ in it.

    Raises
    ------
    BadInput
        A name is not one of ``SETTING``, or no option or several have these settings.
    """
    if unknown := set(values) - {*SETTING}:
        raise BadInput(f"baseline: unknown setting {min(unknown)!r}; allowed: {', '.join(SETTING)}")
    text = ",".join(f"{name}={value}" for name, value in values.items())
    matching = [item for item in options if all(item.setting[n] == v for n, v in values.items())]
    if not matching:
        ran = {n: sorted({str(item.setting[n]) for item in options}, key=_size) for n in values}
        listed = "; ".join(f"{name}={' | '.join(of[:12])}" for name, of in ran.items())
        raise BadInput(f"baseline: no run has {text}; allowed: a setting of the runs ({listed})")
    limits = [name for name in POWER_SETTINGS if name not in values]
    free = [item for item in matching if all(item.setting[name] is None for name in limits)]
    matching = free or matching
    if len(matching) > 1:
        differing = [
            f"{name}={matching[0].setting[name]} or {matching[1].setting[name]}"
            for name in SETTING
            if matching[0].setting[name] != matching[1].setting[name]
        ] or ["the energy or the job"]
        raise BadInput(
            f"baseline: {len(matching)} settings have {text}; allowed: one of them, such as by "
            f"{', '.join(differing)}"
        )
    return matching[0]


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
        raise NothingToRecommend(
            f"no global batch reached a metric of {target:g} in all runs; train longer or choose "
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
