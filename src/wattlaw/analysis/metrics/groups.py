"""Groups of rows, the options in which they differ, and one row per setting from its repeats."""

import json
from collections.abc import Hashable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pandas as pd
from scipy import special

from wattlaw.analysis.metrics.estimates import LEVEL
from wattlaw.analysis.metrics.metrics import SETTINGS
from wattlaw.analysis.metrics.result import plain

Group = dict[str, Any]


def groups(frame: pd.DataFrame, by: Sequence[str]) -> Iterator[tuple[Group, pd.DataFrame]]:
    """Yield each group's values, as plain Python, and its rows; a missing value is a group."""
    if not by:
        if len(frame):
            yield {}, frame
        return
    for key, rows in frame.groupby(list(by), dropna=False, sort=True):
        values: tuple[Hashable, ...] = key if isinstance(key, tuple) else (key,)
        yield {name: plain(value) for name, value in zip(by, values, strict=True)}, rows


def group_numbers(frame: pd.DataFrame, by: Sequence[str]) -> pd.Series:
    # Grouping by this one column is many times faster than by many columns.
    return frame.groupby(list(by), dropna=False, sort=True).ngroup()


#: Columns that hold JSON objects of settings.
JSON_COLUMNS = ("options", "train")


def differing_options(texts: pd.Series) -> dict[str, str]:
    """Return each JSON object of a column, cut down to the keys that differ; other texts stay."""
    parsed: dict[str, dict[str, Any] | None] = {}
    for text in texts.dropna().unique():
        value = None
        with suppress(TypeError, ValueError):
            value = json.loads(text)
        parsed[str(text)] = value if isinstance(value, dict) else None
    objects = [value for value in parsed.values() if value is not None]
    shared = {
        name: value
        for name, value in (objects[0].items() if objects else ())
        if all(name in other and other[name] == value for other in objects)
    }
    return {
        text: text
        if value is None
        else json.dumps({name: setting for name, setting in value.items() if name not in shared})
        for text, value in parsed.items()
    }


#: Energies and quantities derived from them. Those that count different devices have no mean.
ENERGIES = (
    "energy_j", "energy_per_epoch_j", "energy_per_sample_j", "energy_per_step_j",
    "energy_delay_js", "energy_delay2_js2", "energy_per_gpu_hour_j",
)  # fmt: skip
QUANTITIES = (
    "time_s", "epoch_time_s", "time_per_sample_s", "step_time_s", "samples_per_s", "gpu_hours",
    "gpu_hours_per_epoch", "samples_per_gpu_hour", "steps_per_gpu_hour", *ENERGIES,
    "power_per_gpu_w", "sm_util_mean", "sm_util_cv", "mem_util_mean", "mem_util_cv",
    "sm_clock_mean_mhz", "power_throttle_share", "data_wait_share", "communication_share",
    "rank_wait_share", "metric", "best_metric",
)  # fmt: skip

#: Quantities that may be 0 or negative; the intervals of the others are computed on logarithms.
_MAY_BE_ZERO = (
    "sm_util_mean", "sm_util_cv", "mem_util_mean", "mem_util_cv", "power_throttle_share",
    "data_wait_share", "communication_share", "rank_wait_share", "metric", "best_metric",
)  # fmt: skip
_ANY_SIGN = ("metric", "best_metric")


def aggregate(table: pd.DataFrame, by: Sequence[str] = SETTINGS) -> pd.DataFrame:
    """Return the repeats in ``table`` (of ``run_metrics``) aggregated by ``by``.

    For each quantity q of ``QUANTITIES``: ``q`` (mean), ``q_sd`` (with n - 1), ``q_low`` and
    ``q_high``, the 95 % interval of the mean by Student's t, missing for a single repeat. That of
    quantities above 0 is mean * exp(-h) to mean * exp(h), with h the half width of the interval of
    the mean logarithm; others are close to normal, and cut at 0 unless they may be negative.

    ``energy_is`` names what the energies count, or why there is none. The mean energy is missing if
    the repeats count different devices; a repeat without energy is left out of it.
    """
    names = list(QUANTITIES)
    setting, energy_j = group_numbers(table, by), table["energy_j"]
    measured = energy_j.groupby(setting).transform("count") > 0
    energy_is = table["energy_is"].where(energy_j.notna() | ~measured)
    is_comparable = energy_is.groupby(setting).transform("nunique") <= 1
    values = table[names].astype(float).assign(energy_is=energy_is)
    values[list(ENERGIES)] = values[list(ENERGIES)].where(is_comparable)
    grouped = values.groupby(setting)
    count, mean, sd = grouped[names].count(), grouped[names].mean(), grouped[names].std(ddof=1)
    t_errors = special.stdtrit(count.where(count > 1) - 1, (1 + LEVEL) / 2) / np.sqrt(count)
    half = t_errors * sd
    kinds = grouped["energy_is"].first()
    if not is_comparable.all():
        kinds = grouped["energy_is"].agg(join_energy_kinds)
    low, high = mean - half, mean + half
    shares = [name for name in _MAY_BE_ZERO if name not in _ANY_SIGN]
    low[shares] = low[shares].clip(lower=0.0)
    above_0 = [name for name in names if name not in _MAY_BE_ZERO]
    logs = values[above_0].where(values[above_0] > 0).transform(np.log)
    factor = np.exp((t_errors * logs.groupby(setting).std(ddof=1))[above_0])
    low[above_0], high[above_0] = mean[above_0] / factor, mean[above_0] * factor
    columns = {"": mean, "_sd": sd, "_low": low, "_high": high}
    first = ~setting.duplicated()
    settings = table.loc[first, list(by)].set_axis(setting[first]).sort_index()
    parts = [settings.fillna(np.nan).infer_objects(), grouped.size().rename("n"), kinds]
    parts += [frame.add_suffix(end) for end, frame in columns.items()]
    order = [*by, "n", "energy_is", *(f"{name}{end}" for name in names for end in columns)]
    return pd.concat(parts, axis=1)[order].reset_index(drop=True).copy()  # in few blocks


def join_energy_kinds(kinds: pd.Series) -> str | None:
    return "; ".join(sorted(kinds.dropna().unique())) or None
