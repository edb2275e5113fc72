"""Text from users and data for messages: quoted, shortened, joined, on one line."""

import difflib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

_MAX_NAMES = 50
#: Of a line that shows an object: its characters, and the items of a list that are all shown.
_MAX_REPR, _MAX_ITEMS = 160, 4


def quote(value: object, most: int = 60) -> str:
    """Return a user's value for a message: as JSON, printable, and cut after ``most``."""
    length = len(value) if isinstance(value, str | bytes) else 0
    if isinstance(value, str | bytes):
        value = value[: most + 1]
    try:
        text = json.dumps(value, default=str, ensure_ascii=False, skipkeys=True)
    except (ValueError, TypeError, RecursionError):  # a number of too many digits, or deep nesting
        text = f"a value of type {type(value).__name__}"
    return shorten(text, most) + (f" ({length:,} characters)" if length > most else "")


def shorten(text: str, most: int = 200) -> str:
    """Return a text for a message: printable, on one line, and cut after ``most`` characters."""
    line = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text[: most + 1])
    return line if len(line) <= most else f"{line[: most - 3]}..."


def join_names(names: Sequence[str]) -> str:
    """Return names for a message, with commas: the first 50, cut where long, and how many more."""
    text = ", ".join(shorten(name, 60) for name in names[:_MAX_NAMES]) or "none"
    more = len(names) - _MAX_NAMES
    return f"{text} and {more:,} more" if more > 0 else text


def short_repr(item: Any) -> str:
    """Return a dataclass in one line: the fields that differ from their defaults, cut where long.

    It is the ``__repr__`` of what users get; ``print`` and ``to_dict`` show the rest.
    """
    values = {each.name: getattr(item, each.name) for each in fields(item) if each.repr}
    scalars = str | int | float
    usual = {each.name: each.default for each in fields(item) if isinstance(each.default, scalars)}
    shown = [
        f"{name}={repr(value) if name == 'setting' else _short_value(value)}"
        for name, value in values.items()
        if not (value is None or (isinstance(value, tuple | dict) and not value))
        if not (isinstance(value, scalars) and name in usual and value == usual[name])
    ]
    text = ", ".join(shown)
    text = text if len(text) <= _MAX_REPR else f"{text[: _MAX_REPR - 3]}..."
    return f"{type(item).__name__}({text})"


def _short_value(value: Any) -> str:
    if isinstance(value, str | Path | float):
        return f"{value:.4g}" if isinstance(value, float) else repr(shorten(str(value), 60))
    if is_dataclass(value):
        # What has a setting is known by it.
        return repr(value.setting) if hasattr(value, "setting") else f"{type(value).__name__}(...)"
    if isinstance(value, Mapping) and len(value) <= _MAX_ITEMS:
        return f"{{{', '.join(f'{name!r}: {_short_value(item)}' for name, item in value.items())}}}"
    if isinstance(value, Collection):
        is_shown = isinstance(value, tuple | list) and len(value) <= _MAX_ITEMS
        if is_shown and not any(map(is_dataclass, value)):
            return f"({', '.join(map(_short_value, value))})"
        return f"<{len(value)}>"
    return shorten(repr(value), 60)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `` (did you mean ...?)`` for the known name that is most like another, or nothing."""
    found = difflib.get_close_matches(name, list(known), 1)
    return f" (did you mean {found[0]!r}?)" if found else ""


def collapse_whitespace(text: str) -> str:
    """Return text on one line: data cannot start a line that looks like wattlaw's."""
    return " ".join(text.split())
