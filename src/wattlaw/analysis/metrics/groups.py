"""Groups of rows, and the options in which they differ."""

import json
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import numpy as np
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
    """Number rows by the sorted values of columns, many times faster than ``groupby(by)``."""
    numbers = np.zeros(len(frame), dtype=np.int64)
    for name in by:
        codes, values = pd.factorize(frame[name], sort=True, use_na_sentinel=False)
        if len(values) > 1:
            numbers = np.unique(numbers * len(values) + codes, return_inverse=True)[1]
    return pd.Series(numbers, frame.index)


#: Columns that hold JSON objects of settings.
JSON_COLUMNS = ("options", "train")


def differing_options(texts: pd.Series) -> dict[str, str]:
    """Return each JSON object of a column, cut down to the keys that differ."""
    parsed: dict[str, dict[str, Any]] = {text: json.loads(text) for text in texts.dropna().unique()}
    first, *others = [*parsed.values()] or [{}]
    shared = {
        name
        for name, value in first.items()
        if all(name in other and other[name] == value for other in others)
    }
    return {
        text: json.dumps({name: value for name, value in own.items() if name not in shared})
        for text, own in parsed.items()
    }
