"""What a report shows of a job's predictions: a curve over GPU counts, and a check of the model."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import geometric_mean
from types import MappingProxyType
from typing import Any

import pandas as pd

from wattlaw.analysis.metrics.result import Result
from wattlaw.analysis.predict import grid
from wattlaw.analysis.predict.intervals import LEVEL, Prediction, quantiles
from wattlaw.analysis.predict.job import Job, jobs_of
from wattlaw.analysis.predict.observation import Observation
from wattlaw.common.errors import Refused
from wattlaw.study.setting import LAYOUT_NAMES, Setting, layout_of


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
