"""What the analyses of limits share: which rows differ in one limit alone, and their reference."""

import math
from collections.abc import Sequence
from typing import Literal

import pandas as pd

Limit = Literal["power_limit_w", "clock_limit_mhz"]
LIMITS: tuple[Limit, ...] = ("power_limit_w", "clock_limit_mhz")


def other_limit(limit: Limit) -> Limit:
    """Return the limit that has to be held while ``limit`` is varied."""
    return "clock_limit_mhz" if limit == "power_limit_w" else "power_limit_w"


def varying_only(rows: pd.DataFrame, limit: Limit) -> pd.DataFrame:
    """Return the rows in which ``limit`` is the only limit that differs.

    Where the other limit differs too, the rows without it are kept, or where all have one, those
    with its highest value: a run at a locked clock is no uncapped run.
    """
    other = other_limit(limit)
    if other not in rows or rows[other].nunique(dropna=False) <= 1:
        return rows
    free = rows[rows[other].isna()]
    return free if len(free) else rows[rows[other] == rows[other].max()]


def distinct_limits(limits: pd.Series) -> list[float | None]:
    """Return the distinct limits from high to low, no limit (None) first.

    The first is the reference, with which the others are compared.
    """
    values = sorted((float(value) for value in limits.dropna().unique()), reverse=True)
    return [None, *values] if limits.isna().any() else [*values]


def at_limit(rows: pd.DataFrame, column: str, value: float | None) -> pd.DataFrame:
    """Return the rows whose limit is ``value``; None is no limit."""
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


def with_several_limits(table: pd.DataFrame, names: Sequence[str], limit: Limit) -> pd.DataFrame:
    """Return the rows of those settings (``names``) that have at least two values of ``limit``."""
    code = table[limit].fillna(-1.0).groupby([table[name] for name in names], dropna=False)
    return table[code.transform("nunique") > 1]
