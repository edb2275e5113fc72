"""What can go wrong, in words for the user: one line that says what and where, and an exit code."""

import json
from collections.abc import Sequence

_MOST_NAMES = 50


class WattlawError(Exception):
    """Base of every error that wattlaw raises on purpose; its text is one line for the user."""

    exit_code = 2


class BadInput(WattlawError):
    """A study file, table, option or store that cannot be used as it is (exit code 2)."""


class NotAvailable(WattlawError):
    """Something this machine or user lacks: a package, a device, a permission (exit code 3)."""

    exit_code = 3


class NotPermitted(NotAvailable):
    """Something this user may not do; the text says who may."""


class Refused(WattlawError):
    """An analysis that the data cannot support; the text says what is missing."""


def one_line(error: BaseException) -> str:
    """Return ``Type: first words`` of an error on a single line, for reasons and logs."""
    words = " ".join(str(error).split())
    if isinstance(error, WattlawError):
        return words
    name = type(error).__name__
    return f"{name}: {words}" if words else name


def shown(value: object, most: int = 60) -> str:
    """Return a value of the user's for a message: as JSON, printable, and cut after ``most``."""
    length = len(value) if isinstance(value, str | bytes) else 0
    if isinstance(value, str | bytes):
        value = value[: most + 1]
    try:
        text = json.dumps(value, default=str, ensure_ascii=False, skipkeys=True)
    except (ValueError, TypeError, RecursionError):  # a number without end, or a deep nest
        text = f"a value of type {type(value).__name__}"
    return short(text, most) + (f" ({length:,} characters)" if length > most else "")


def short(text: str, most: int = 200) -> str:
    """Return a text for a message: printable, on one line, and cut after ``most`` characters."""
    line = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text[: most + 1])
    return line if len(line) <= most else f"{line[: most - 3]}..."


def listed(names: Sequence[str]) -> str:
    """Return names for a message, with commas: the first 50, cut where long, and how many more."""
    text = ", ".join(short(name, 60) for name in names[:_MOST_NAMES]) or "none"
    more = len(names) - _MOST_NAMES
    return f"{text} and {more:,} more" if more > 0 else text
