"""The options of a job that were not measured: settings between and beyond those that were.

A measured option is never replaced by a predicted one.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from wattlaw.analysis.advice.option import Option, Quantity
from wattlaw.analysis.advice.options import row_setting
from wattlaw.analysis.caps.limits import LIMITS
from wattlaw.analysis.comparable_runs import ComparableRuns, comparable_runs
from wattlaw.analysis.prediction import grid
from wattlaw.analysis.prediction.job import Job, job_of
from wattlaw.analysis.prediction.predict import extrapolated
from wattlaw.analysis.prediction.results import quantiles
from wattlaw.analysis.prediction.settings import TrainingSetting
from wattlaw.analysis.series import NOT_DATA_PARALLEL

Floats = npt.NDArray[np.float64]
Limits = tuple[float | None, ...]

#: A time is known well enough for an option if its 95 % interval is no wider than this factor.
WIDEST = 4.0
#: GPU counts to try, as a multiple of the largest measured one: intervals decide what is kept.
_REACH = 64
#: Runs that differ in these columns inform different models.
_SEPARATE = ("hardware", "launcher", "threads_per_worker")
_LEVEL = 0.95
#: With more settings, those between measured batches and limits are left out.
_MOST = 400


def predicted_options(
    table: pd.DataFrame,
    job: ComparableRuns,
    epochs: Callable[[dict[str, Any]], Quantity | None],
    max_gpus: int | None,
) -> list[Option]:
    """Return options that were not measured, predicted by the model of ``analysis.prediction``.

    Parameters
    ----------
    table
        All runs: those that emulate the batch of more GPUs inform the model as well.
    job
        The runs of the measured options.
    epochs
        The number of units to train at a setting; None if it is not known.
    max_gpus
        The largest GPU count of interest: counts go up to twice it.

    Returns
    -------
    list of Option
        At measured GPU counts and their doublings: all combinations of measured batches and limits,
        and those half-way between neighbours. Options whose 95 % interval of time is wider than a
        factor of ``WIDEST`` are left out. Means are medians; bounds are 95 % intervals of a run.
    """
    if set(job.rows["parallelism"].dropna()) & {*NOT_DATA_PARALLEL}:
        return []
    workload, informing = str(job.rows["workload"].iloc[0]), job
    if table["emulated_gpus"].notna().any():
        with_emulated = comparable_runs(table.assign(emulated_gpus=None), workload)
        if (with_emulated.unit, with_emulated.energy_is) == (job.unit, job.energy_is):
            informing = with_emulated
    options: list[Option] = []
    for _, rows in informing.rows.groupby(list(_SEPARATE), dropna=False):
        own = rows[rows["run_id"].isin(job.rows["run_id"])]
        if len(own):
            model = job_of(replace(informing, rows=rows))
            options += _of_job(model, own, job, epochs, max_gpus)
    return options


def _of_job(
    model: Job,
    rows: pd.DataFrame,
    job: ComparableRuns,
    epochs: Callable[[dict[str, Any]], Quantity | None],
    max_gpus: int | None,
) -> Iterator[Option]:
    measured = model.settings
    settings = list(_candidates(measured, model, max_gpus))
    if not settings:
        return
    time_s, energy_j = model.amounts(settings)
    times = quantiles(time_s, _LEVEL)
    energies = None if energy_j is None else quantiles(energy_j, _LEVEL)
    base = row_setting(rows.iloc[0].to_dict())
    counts = sorted({item.gpus for item in measured})
    for index, setting in enumerate(settings):
        values = _setting(base, setting)
        needed = epochs(values)
        if needed is None or times[2, index] > WIDEST * times[0, index]:
            continue
        energy = None if energies is None else _quantity(energies[:, index])
        yield Option(
            setting=values, unit=job.unit, time_s=_quantity(times[:, index]), energy_j=energy,
            amount=needed, measured=False, repeats=0,
            energy_is=job.energy_is if energy else None,
            extrapolates=extrapolated(model.observations, setting),
            measured_gpus=(counts[0], counts[-1]),
        )  # fmt: skip


def _quantity(bounds: Floats) -> Quantity:
    low, mean, high = map(float, bounds)
    return Quantity(mean, low, high)


def _setting(base: dict[str, Any], setting: TrainingSetting) -> dict[str, Any]:
    """Return the settings of an option; hardware, launcher and so on are those of ``base``."""
    names = ("gpus", "nodes", "local_batch", "global_batch", "precision", *LIMITS)
    values = {name: getattr(setting, name) for name in names}
    for name in ("local_batch", "global_batch"):
        values[name] = None if values[name] is None else int(values[name])
    return base | values


def _candidates(
    measured: Sequence[TrainingSetting], model: Job, max_gpus: int | None
) -> Iterator[TrainingSetting]:
    """Yield the settings to predict, without measured ones."""
    largest = max(item.gpus for item in measured)
    reach = _REACH if max_gpus is None else min(_REACH, 2 * max(max_gpus, largest) / largest)
    counts = grid.doublings({item.gpus for item in measured}, reach)
    limits = dict.fromkeys(tuple(getattr(item, name) for name in LIMITS) for item in measured)
    between = list(dict.fromkeys([*limits, *_between(list(limits))]))
    precisions = dict.fromkeys((item.precision, item.gradient_accumulation) for item in measured)
    batches = {count: _local_batches(measured, count) for count in counts}
    size = sum(map(len, batches.values())) * len(precisions)
    chosen = between if size * len(between) <= _MOST else list(limits)
    known = {_key(item) for item in measured}
    for count, limit, (precision, accumulated) in product(counts, chosen, precisions):
        for batch, nodes in product(batches[count], _nodes(measured, count, model.node_gpus)):
            setting = grid.placed(
                count, nodes, model.node_gpus, local_batch=batch, precision=precision,
                gradient_accumulation=accumulated, **dict(zip(LIMITS, limit, strict=True)),
            )  # fmt: skip
            if _key(setting) not in known:
                known.add(_key(setting))
                yield setting


def _key(setting: TrainingSetting) -> TrainingSetting:
    """Return the setting without the GPUs of each node: runs name the number of nodes alone."""
    return replace(setting, gpus_per_node=None) if setting.nodes else setting


def _local_batches(measured: Iterable[TrainingSetting], gpus: int) -> list[float | None]:
    """Return batches of a GPU: the measured local and global ones, and doublings between them."""
    batches: dict[float | None, None] = {}
    for item in measured:
        for batch in (item.local_batch, item.global_batch and item.global_batch / gpus):
            if batch is None or (batch >= 1 and batch == int(batch)):
                batches[batch] = None
    known = sorted(batch for batch in batches if batch is not None)
    for low, high in pairwise(known):
        between = low
        while (between := 2 * between) < high:
            batches[between] = None
    return list(batches)


def _nodes(
    measured: Iterable[TrainingSetting], gpus: int, node_gpus: int | None
) -> list[int | None]:
    """Return None for the fewest nodes, and numbers of nodes if GPUs were spread over more."""
    if node_gpus is None:
        return [None]
    spread = {
        item.nodes for item in measured if item.nodes and item.nodes > -(-item.gpus // node_gpus)
    }
    return [None, *(nodes for nodes in sorted(spread) if nodes <= gpus <= nodes * node_gpus)]


def _between(limits: Sequence[Limits]) -> Iterator[Limits]:
    """Yield limits half-way between neighbours that differ in one limit alone."""
    for place in range(len(LIMITS)):
        by_other: dict[float | None, list[float]] = {}
        for limit in limits:
            if (value := limit[place]) is not None:
                by_other.setdefault(limit[1 - place], []).append(value)
        for other, values in by_other.items():
            for low, high in pairwise(sorted(values)):
                middle = float(round((low + high) / 2))
                yield (middle, other) if place == 0 else (other, middle)
