"""The options of a job that were not run: settings between and beyond those that were.

An option that was run is never replaced by a predicted one.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import pandas as pd

from wattlaw.analysis.advise.option import PREDICTED, Option, Quantity
from wattlaw.analysis.advise.run_options import SEPARATE
from wattlaw.analysis.laws.limit_effects import LIMITS
from wattlaw.analysis.metrics.comparable_runs import (
    NOT_DATA_PARALLEL,
    ComparableRuns,
    comparable_runs,
)
from wattlaw.analysis.metrics.result import plain
from wattlaw.analysis.predict import grid
from wattlaw.analysis.predict.intervals import quantiles
from wattlaw.analysis.predict.job import Job, job_of
from wattlaw.analysis.predict.observation import Floats
from wattlaw.analysis.predict.predictions import MeasuredRange
from wattlaw.study.setting import Setting

Limits = tuple[float | None, ...]

#: A time is known well enough for an option if its 95 % interval is no wider than this factor.
WIDEST = 4.0
#: GPU counts to try, as a multiple of the largest one that ran: intervals decide what is kept.
_REACH = 64
_LEVEL = 0.95
#: With more settings, those between measured batches and limits are left out.
_MOST = 400


def models_of(table: pd.DataFrame, job: ComparableRuns) -> dict[tuple[Any, ...], Job]:
    """Return the prediction model's job for each combination of ``SEPARATE``; none without laws.

    ``table`` has all runs: those that emulate the batch of more GPUs inform the model as well.
    ``job`` has the runs of the options.
    """
    if set(job.rows["parallelism"].dropna()) & {*NOT_DATA_PARALLEL}:
        return {}
    workload, informing = str(job.rows["workload"].iloc[0]), job
    if table["emulated_gpus"].notna().any():
        with_emulated = comparable_runs(table.assign(emulated_gpus=None), workload)
        if (with_emulated.unit, with_emulated.energy_is) == (job.unit, job.energy_is):
            informing = with_emulated
    return {
        tuple(map(plain, key)): job_of(replace(informing, rows=rows))
        for key, rows in informing.rows.groupby(list(SEPARATE), dropna=False)
        if rows["run_id"].isin(job.rows["run_id"]).any()
    }


def predicted_options(
    options: Sequence[Option],
    judge: Callable[[Option], Option | None],
    max_gpus: int | None,
    *,
    far: bool,
) -> list[Option]:
    """Return options that were not run, predicted by the model of ``analysis.predict``.

    They are at measured GPU counts and their doublings: all combinations of measured batches and
    limits, and those half-way between neighbours, as far as ``judge`` returns an option for them.
    With ``far``, settings outside of the range of the runs are predicted as well.
    Options whose workers share cores, or whose 95 % interval of time is wider than a factor of
    ``WIDEST``, are left out. Means are medians; bounds are 95 % intervals of a run.
    """
    amounts = {(item.setting["precision"], item.global_batch): item.amount for item in options}
    by_model: dict[int, list[Option]] = {}
    for item in options:
        if item.model is not None:
            by_model.setdefault(id(item.model), []).append(item)
    return [
        option
        for own in by_model.values()
        for option in _of_model(own, amounts, judge, max_gpus, far=far)
    ]


def _of_model(
    own: Sequence[Option],
    amounts: Mapping[tuple[Any, Any], Quantity],
    judge: Callable[[Option], Option | None],
    max_gpus: int | None,
    *,
    far: bool,
) -> Iterator[Option]:
    first, fixed = own[0], len({item.amount for item in own}) == 1
    model = first.model
    if model is None:
        return
    predicted = []
    batches = [item.global_batch for item in own if item.global_batch is not None]
    measured = MeasuredRange.of(model.observations)
    for setting in _candidates([item.training for item in own], model, max_gpus):
        outside = measured.exceeded_by(setting)
        if batches and not min(batches) <= (setting.global_batch or 0) <= max(batches):
            outside = (*outside, "global_batch")
        values = _setting(first.setting, setting)
        amount = amounts.get((values["precision"], values["global_batch"]))
        amount = first.amount if fixed else amount
        if amount is None or (outside and not far) or model.shares_cores(setting):
            continue
        option = replace(
            first, setting=values, training=setting, source=PREDICTED, repeats=0, runs=None,
            amount=amount, extrapolates=outside, epochs_trained=None, eval_time_s=None, metric=None,
            per={}, quality_known=False, quality_warnings=(), falls=False,
        )  # fmt: skip
        if (judged := judge(option)) is not None:
            predicted.append(judged)
    if not predicted:
        return
    time_s, energy_j = model.amounts([item.training for item in predicted])
    times = quantiles(time_s, _LEVEL)
    energies = None if energy_j is None else quantiles(energy_j, _LEVEL)
    for index, option in enumerate(predicted):
        if times[2, index] <= WIDEST * times[0, index]:
            yield replace(
                option, time_s=_quantity(times[:, index]),
                energy_j=None if energies is None else _quantity(energies[:, index]),
                energy_is=None if energies is None else model.energy_is,
            )  # fmt: skip


def _quantity(bounds: Floats) -> Quantity:
    low, mean, high = map(float, bounds)
    return Quantity(mean, low, high)


def _setting(base: Mapping[str, Any], setting: Setting) -> dict[str, Any]:
    """Return the settings of an option; hardware, launcher and so on are those of ``base``."""
    names = ("gpus", "nodes", "local_batch", "global_batch", "precision", *LIMITS)
    values = {name: getattr(setting, name) for name in names}
    for name in ("local_batch", "global_batch"):
        values[name] = None if values[name] is None else int(values[name])
    return dict(base) | values


def _candidates(measured: Sequence[Setting], model: Job, max_gpus: int | None) -> Iterator[Setting]:
    largest = max(item.gpus for item in measured)
    reach = _REACH if max_gpus is None else min(_REACH, max(max_gpus, largest) / largest)
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


def _key(setting: Setting) -> Setting:
    """Return the setting without the GPUs of each node: runs name the number of nodes alone."""
    return replace(setting, gpus_per_node=None) if setting.nodes else setting


def _local_batches(measured: Iterable[Setting], gpus: int) -> list[float | None]:
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


def _nodes(measured: Iterable[Setting], gpus: int, node_gpus: int | None) -> list[int | None]:
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
