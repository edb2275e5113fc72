"""The predictions of a workload in a store, at the settings that a caller names."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from statistics import geometric_mean
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pandas as pd

from wattlaw.analysis.metrics.result import Caution, Result, Rows
from wattlaw.analysis.predict import grid, reach
from wattlaw.analysis.predict.intervals import LEVEL, Prediction, quantiles
from wattlaw.analysis.predict.job import Job, jobs_of
from wattlaw.analysis.predict.observation import Observation
from wattlaw.common.errors import BadInput, Refused
from wattlaw.common.formatting import plural
from wattlaw.study.setting import LAYOUT_NAMES, Setting, layout_of

if TYPE_CHECKING:
    from wattlaw.hardware.cluster import Cluster


@dataclass(frozen=True)
class Predictions(Rows[Prediction]):
    """Predictions, one for each setting and kind of hardware.

    ``baselines`` has the setting that ``p_faster`` compares with, for each kind of hardware.
    ``machine_gpus`` are the most of the machine of a study, if the default settings stay there.
    """

    rows: tuple[Prediction, ...]
    baselines: tuple[tuple[str | None, Setting], ...]
    warnings: tuple[Caution, ...]
    baseline_is: str = field(repr=False)  # named | in use, by the study | fastest
    machine_gpus: int | None = field(default=None, repr=False)
    worker: str = field(default="GPU", repr=False)  # what a "gpu" is called
    has_layouts: bool = field(default=False, repr=False)  # in the runs, or asked for


def predict_workload(
    table: pd.DataFrame,
    workload: str,
    *,
    baseline: Mapping[str, Any] | None = None,
    in_use: Mapping[str, Any] | None = None,
    is_one_machine: bool = False,
    epochs: float | None = None,
    cluster: "Cluster | None" = None,
    seed: int = 0,
    far: bool = False,
    boards: Mapping[str, reach.Ranges] | None = None,
    recommended: tuple[str | None, Setting] | None = None,
    stored: pd.DataFrame | None = None,
    **values: Any,
) -> Predictions:
    """Return the predictions of a workload, for each kind of hardware.

    ``table`` is of ``metrics.run_metrics``. ``p_faster`` compares with ``baseline``
    (``grid.baseline``); by default with what is ``in_use``, if that can be predicted, else with the
    fastest. Default GPU counts stay on a node if the study ``is_one_machine``. ``cluster`` is the
    hardware of the runs, for its priors and the GPUs of a node. ``values`` are those of
    ``grid.combinations``. ``boards`` has the range of limits of each kind of hardware; ``far``
    allows any number of GPUs. Where a script trains on one GPU alone, all its batches are shown;
    ``recommended``, a setting and before it its hardware, is shown, too. ``stored`` has all runs,
    for what fits into memory.
    """
    rows: list[Prediction] = []
    baselines = []
    baseline_is = "fastest"
    machine_gpus = None
    warnings: dict[Caution, None] = {}
    if cluster is not None and not values.get("gpus_per_node"):
        values["gpus_per_node"] = cluster.node.gpus
    for known in jobs_of(table, workload, values.get("gpus_per_node"), stored):
        job = replace(known, board=(boards or {}).get(str(known.hardware), {}))
        measured = job.settings
        asked = dict(values)
        if job.is_single and not asked.get("gpus"):
            asked["gpus"] = job.default_counts
            if not (asked.get("local_batch") or asked.get("global_batch")):
                asked["local_batch"] = sorted({item.local_batch for item in measured} - {None})
        settings = grid.combinations(measured, job.node_gpus, **asked)
        if is_one_machine and not any(asked.get(name) for name in ("gpus", "nodes", "layout")):
            node_gpus = asked.get("gpus_per_node") or job.node_gpus or 0
            machine_gpus = max(node_gpus, *(item.gpus for item in measured))
            settings = [item for item in settings if item.gpus <= machine_gpus]
        if recommended is not None and recommended[0] == job.hardware:
            chosen = replace(recommended[1], power_profile=None, dataset_fraction=1.0)
            if chosen not in settings and chosen.gpus <= (machine_gpus or chosen.gpus):
                settings = sorted([*settings, chosen], key=lambda item: item.gpus)
        compared, baseline_is = _compared(job, baseline, in_use, far=far)
        if not settings:
            raise BadInput("global_batch: no GPU count divides it; set --gpus or --local-batch")
        for name, given in (("gpus", settings), ("baseline", [compared])):
            for setting in given:
                reach.check_limits(setting, measured, job.board)
                if not far:
                    reach.check_gpus(name, setting.gpus, measured)
        baselines.append((job.hardware, compared))
        rows += job.predict(settings, baseline=compared, epochs=epochs, cluster=cluster, seed=seed)
        if job.is_single and any(setting.gpus > 1 for setting in settings):
            text = (
                f"All {plural(len(job.observations), 'run')} of {workload} had 1 {job.worker} and "
                "no training on several was seen in them: the script may not train on more, and "
                "nothing shows what its communication takes. Measure a run that does."
            )
            warnings[Caution("one-worker", text)] = None
        warnings |= dict.fromkeys(job.warnings)
    warnings |= dict.fromkeys(warning for row in rows for warning in row.warnings)
    has_layouts = bool(values.get("layout")) or job.observations[0].network is not None
    return Predictions(
        tuple(rows),
        tuple(baselines),
        tuple(warnings),
        baseline_is,
        machine_gpus,
        job.worker,
        has_layouts,
    )


def _compared(
    job: Job, baseline: Mapping[str, Any] | None, in_use: Mapping[str, Any] | None, *, far: bool
) -> tuple[Setting, str]:
    """Return the setting to compare with, and what it is."""
    if baseline is not None:
        return grid.baseline(baseline, job.settings, job.node_gpus), "named"
    if in_use:
        with suppress(BadInput, Refused):  # out of reach, such as a limit that no board accepts
            setting = grid.baseline(in_use, job.settings, job.node_gpus)
            reach.check_limits(setting, job.settings, job.board)
            if not far:
                reach.check_gpus("baseline", setting.gpus, job.settings)
            return setting, "in use"
    return job.fastest, "fastest"


@dataclass(frozen=True)
class Check(Result):
    setting: Setting
    measured_s: float  # of the job's unit; geometric mean of runs
    predicted_s: float
    low_s: float
    high_s: float

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured_s - 1

    @property
    def is_inside(self) -> bool:
        return self.low_s <= self.measured_s <= self.high_s


@dataclass(frozen=True)
class Overview:
    job: Job
    curve: tuple[Prediction, ...]
    checks: tuple[Check, ...]
    shown: Setting | None = None  # whose layout the curve has, where layouts are modelled

    @property
    def measured(self) -> list[Observation]:
        keys = {_key(row.setting) for row in self.curve}
        return [item for item in self.job.observations if _key(item.setting) in keys]


def overviews(
    table: pd.DataFrame,
    stored: pd.DataFrame | None = None,
    chosen: Mapping[tuple[str, str | None], Setting] = MappingProxyType({}),
) -> tuple[Overview, ...]:
    """Return the overview of each workload and kind of hardware that can be predicted.

    ``stored`` has all runs, also those without a result. Where layouts are modelled, the curve has
    the layout and batch of ``chosen`` (by workload and hardware), else those of the fastest run.
    """
    rows: list[Overview] = []
    for workload in sorted(table["workload"].dropna().unique()):
        try:
            jobs = jobs_of(table, workload, stored=stored)
        except Refused:
            continue
        for job in jobs:
            shown = None
            if job.observations[0].network is not None:
                shown = chosen.get((job.workload, job.hardware), job.fastest)
            settings = _curve_settings(job, shown)
            rows.append(Overview(job, tuple(job.predict(settings)), check_largest(job), shown))
    return tuple(rows)


def _curve_settings(job: Job, shown: Setting | None) -> list[Setting]:
    if shown is None or not shown.micro_batch:
        return grid.combinations(job.settings, job.node_gpus, job.default_counts)
    batch = "global_batch" if "global_batch" in grid.usual_values(job.settings) else "local_batch"
    layout = {name: [getattr(shown, name)] for name in LAYOUT_NAMES}
    given: dict[str, Any] = {batch: [getattr(shown, batch)], "layout": layout}
    return grid.combinations(job.settings, job.node_gpus, job.default_counts, **given)


def check_largest(job: Job) -> tuple[Check, ...]:
    """Predict the runs on the most GPUs from all others; empty if there is one GPU count alone."""
    most = max(item.gpus for item in job.settings)
    seen = tuple(item for item in job.observations if item.setting.gpus < most)
    if not seen:
        return ()
    times: dict[Setting, list[float]] = {}
    for item in job.observations:
        if item.setting.gpus == most:
            times.setdefault(item.setting, []).append(job.unit_time_s(item))
    predicted, _ = replace(job, observations=seen).amounts(list(times))
    bounds = quantiles(predicted, LEVEL).T.tolist()
    return tuple(
        Check(setting, geometric_mean(times[setting]), middle, low, high)
        for setting, (low, middle, high) in zip(times, bounds, strict=True)
    )


def _key(item: Setting) -> tuple[object, ...]:
    return (
        item.gpus, item.nodes, item.local_batch, item.precision, item.gradient_accumulation,
        item.power_limit_w, item.clock_limit_mhz, *layout_of(item),
    )  # fmt: skip
