"""Rows that belong together, and how a group is called in words."""

import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from datetime import date
from typing import Any

import numpy as np
import pandas as pd

Group = dict[str, Any]


def groups(frame: pd.DataFrame, by: Sequence[str]) -> Iterator[tuple[Group, pd.DataFrame]]:
    """Yield each group's values, as plain Python, and its rows; a missing value is a group."""
    if not by:
        if len(frame):
            yield {}, frame
        return
    for key, rows in frame.groupby(list(by), dropna=False, sort=True):
        values: tuple[Hashable, ...] = key if isinstance(key, tuple) else (key,)
        yield {name: _value(value) for name, value in zip(by, values, strict=True)}, rows


def group_label(group: Mapping[str, Any]) -> str:
    """Return a group in words, the workload in front: ``resnet50, local batch 256, 200 W``."""
    parts = [format_setting(name, value) for name, value in group.items() if value is not None]
    return ", ".join(word for word in parts if word)


def format_setting(name: str, value: Any) -> str:
    """Return one setting in words; empty where there is none.

    ``value`` of ``options`` and ``train`` is JSON, of which ``differing_options`` keeps what
    differs; here its keys are told one by one.
    """
    if value is None or (not isinstance(value, (str, list, dict)) and pd.isna(value)):
        return ""
    if name in _UNITS:
        return f"{value:g} {_UNITS[name]}"
    if name in _BARE:
        return str(value)
    if name in JSON_COLUMNS:
        return _told(value)
    is_whole = isinstance(value, float) and value.is_integer()
    shown = (
        str(int(value)) if is_whole else f"{value:g}" if isinstance(value, float) else str(value)
    )
    return f"{name.replace('_', ' ')} {shown}"


_UNITS = {"power_limit_w": "W", "clock_limit_mhz": "MHz", "threads_per_worker": "threads"}
_BARE = ("workload", "hardware", "precision", "energy_is")
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


def _told(text: Any) -> str:
    parsed_object = _object(text)
    if parsed_object is None:
        return str(text)
    if list(parsed_object) == ["command"] and isinstance(parsed_object["command"], list):
        return " ".join(map(str, parsed_object["command"]))
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in parsed_object.items())


def _value(value: Any) -> Any:
    if value is None or pd.isna(value):
        return None
    if isinstance(value, date):
        return value.isoformat()
    return value.item() if isinstance(value, np.generic) else value
