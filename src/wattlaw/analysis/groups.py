"""Groups of rows, and the options in which they differ."""

import json
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import pandas as pd

from wattlaw.analysis.result import plain

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
    """Return the number of each row's group, in the order of ``groups``.

    Grouping by this one column is many times faster than by many columns.
    """
    return frame.groupby(list(by), dropna=False, sort=True).ngroup()


#: Columns that hold JSON objects of settings.
JSON_COLUMNS = ("options", "train")


def differing_options(texts: pd.Series) -> dict[str, str]:
    """Return each JSON object of a column, cut down to the keys in which they differ.

    Raises nothing: a text that is no JSON object stays as it is.
    """
    parsed = {str(text): _object(text) for text in texts.dropna().unique()}
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


def _object(text: Any) -> dict[str, Any] | None:
    try:
        parsed_object = json.loads(text)
    except (TypeError, ValueError):
        return None
    return parsed_object if isinstance(parsed_object, dict) else None
