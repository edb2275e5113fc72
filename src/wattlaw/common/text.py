"""Text from users and data for messages: quoted, shortened, joined, on one line."""

import difflib
import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import fields
from typing import Any

_MAX_NAMES = 50
#: Characters of a line that shows an object.
_MAX_REPR = 160


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
    """Return a dataclass in one line: fields that differ from their defaults, cut where long."""
    shown = []
    for each in fields(item):
        value = getattr(item, each.name)
        is_empty = isinstance(value, tuple | dict) and not value
        is_usual = isinstance(value, str | int | float) and value == each.default
        if not each.repr or value is None or is_empty or is_usual:
            continue
        text = repr(value)
        if isinstance(value, float):
            text = f"{value:.4g}"
        elif isinstance(value, Collection) and not isinstance(value, str):
            text = f"<{len(value)}>"
        elif each.name != "setting":
            text = shorten(text, 60)
        shown.append(f"{each.name}={text}")
    line = ", ".join(shown)
    line = line if len(line) <= _MAX_REPR else f"{line[: _MAX_REPR - 3]}..."
    return f"{type(item).__name__}({line})"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `` (did you mean ...?)`` for the known name that is most like another, or nothing."""
    found = difflib.get_close_matches(name, list(known), 1)
    return f" (did you mean {found[0]!r}?)" if found else ""


def collapse_whitespace(text: str) -> str:
    """Return text on one line: data cannot start a line that looks like wattlaw's."""
    return " ".join(text.split())
