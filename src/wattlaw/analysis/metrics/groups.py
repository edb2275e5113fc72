"""Groups of rows, and the options in which they differ."""

import json
from collections.abc import Hashable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pandas as pd

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
