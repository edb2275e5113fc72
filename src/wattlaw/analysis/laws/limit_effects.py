"""Rows that differ in one limit alone, and speed and energy under a limit."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import pandas as pd

from wattlaw.analysis.metrics.groups import Group, groups
from wattlaw.analysis.metrics.metrics import SETTINGS
from wattlaw.analysis.metrics.variation import Variation, variations

Limit = Literal["power_limit_w", "clock_limit_mhz"]
LIMITS: tuple[Limit, ...] = ("power_limit_w", "clock_limit_mhz")
#: What lowers the power of a GPU: limits, and profiles, which have no order.
POWER_SETTINGS: tuple[str, ...] = (*LIMITS, "power_profile")


def other_limit(limit: Limit) -> Limit:
    return "clock_limit_mhz" if limit == "power_limit_w" else "power_limit_w"


def distinct_limits(limits: pd.Series) -> list[float | None]:
    """Return the distinct limits from high to low, no limit (None) first: it is the reference."""
    values = sorted((float(value) for value in limits.dropna().unique()), reverse=True)
    return [None, *values] if limits.isna().any() else [*values]


def at_limit(rows: pd.DataFrame, column: str, value: float | None) -> pd.DataFrame:
    return rows[rows[column].isna() if value is None else rows[column] == value]


def without_limits(rows: pd.DataFrame, by: Sequence[str] = ()) -> pd.DataFrame:
    """Return the rows without cap and clock or, where all have one, those with the highest.

    With ``by``, that is decided for each group of these columns by itself: a machine that was
    never run without a cap is not left out for another that was.
    """
    for limit in LIMITS:
        shown = rows[limit].fillna(math.inf)
        highest = shown.max()
        if by:
            highest = shown.groupby([rows[name] for name in by], dropna=False).transform("max")
        rows = rows[shown == highest]
    return rows


TIME, ENERGY = "time_s", "energy_j"
_SUFFIXES = ("", "_low", "_high")
_RATIOS = [f"{name}_ratio{end}" for name in ("time", "speed", "energy") for end in _SUFFIXES]


def limit_effects(table: pd.DataFrame, limit: Limit = "power_limit_w") -> pd.DataFrame:
    """Return time, speed and energy of each limit as ratios to the run without it.

    One row per setting and limit, settings of a single limit left out: the settings, ``limit`` and
    ``reference`` (missing: none; else the highest), ratios of geometric means over repeats with
    the 95 % intervals of ``Variation.ratio``, ``n``, ``n_reference``, and ``energy_is``. Energies
    that count different things have no ratio, and ``energy_is`` names all of them. The other limit
    stays the same. A column of settings that ``table`` lacks is taken not to differ.
    """
    names = [name for name in SETTINGS if name in table.columns and name != limit]
    table = table.reset_index(drop=True)
    limits = table[limit].fillna(-1.0).groupby([table[name] for name in names], dropna=False)
    several = table.loc[limits.transform("nunique") > 1, [*names, limit, ENERGY, "energy_is"]]
    of_runs = dict(variations(table, (TIME, ENERGY))) if len(several) else {}
    rows = [
        row for group, runs in groups(several, names)
        for row in _rows(group, runs, limit, of_runs[runs.index[0]])
    ]  # fmt: skip
    columns = [*names, "limit", "reference", *_RATIOS, "n", "n_reference", "energy_is"]
    frame = pd.DataFrame(rows, columns=columns)
    return frame.astype(dict.fromkeys(["limit", "reference", *_RATIOS], float))


def _rows(
    group: Group, runs: pd.DataFrame, limit: Limit, varied: Mapping[str, Variation]
) -> Iterator[dict[str, Any]]:
    limits = distinct_limits(runs[limit])
    at = [at_limit(runs, limit, value) for value in limits]
    kinds = [{*rows.loc[rows[ENERGY].notna(), "energy_is"].dropna()} for rows in at]
    for i, value in enumerate(limits):
        counted = kinds[0] | kinds[i]
        ratio, low, high = varied[TIME].ratio(at[i].index, at[0].index)
        values = [ratio, low, high, 1 / ratio, 1 / high, 1 / low]
        if len(counted) <= 1:
            values += varied[ENERGY].ratio(at[i].index, at[0].index)
        yield group | dict(zip(_RATIOS, values, strict=False)) | {
            "limit": value, "reference": limits[0], "n": len(at[i]), "n_reference": len(at[0]),
            "energy_is": "; ".join(sorted(counted)) or None,
        }  # fmt: skip
