"""Lists, JSON objects and numbers of the command line."""

import json
import math
from typing import Any

import typer

from wattlaw.errors import BadInput
from wattlaw.text import quote


def parse_counts(option: str, text: str, maximum: int) -> list[int]:
    """Return the integers of ``1,2,4`` in their order, without duplicates.

    Raises
    ------
    BadInput
        An item is not an integer from 1 to ``maximum``.
    """
    expected = f"integers from 1 to {maximum:,} separated by commas, such as 1,2,4"
    values = []
    for item in _split(option, text, expected):
        # An integer with very many digits is refused before it is converted.
        value = int(item) if item.isascii() and item.isdigit() and len(item) < 20 else 0
        if not 1 <= value <= maximum:
            raise _invalid(option, item, expected)
        values.append(value)
    return list(dict.fromkeys(values))


def parse_limits(option: str, text: str | None) -> list[float | None]:
    """Return the numbers of ``100,150,none`` in their order, without duplicates.

    ``none`` becomes None, which means no limit. So does a missing text.

    Raises
    ------
    BadInput
        An item is neither ``none`` nor a number > 0.
    """
    if text is None:
        return [None]
    expected = "numbers > 0 or none, separated by commas, such as 100,150,none"
    values: list[float | None] = []
    for item in _split(option, text, expected):
        if item.lower() == "none":
            values.append(None)
            continue
        try:
            value = float(item)
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            raise _invalid(option, item, expected)
        values.append(value)
    return list(dict.fromkeys(values))


def parse_json_object(option: str, text: str) -> dict[str, Any]:
    """Return a JSON object.

    Raises
    ------
    BadInput
        The text is not a JSON object.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise _invalid(option, text, """a JSON object such as '{"image_size": 160}'""")
    return value


def positive(value: float | None) -> float | None:
    """Return the value of an option; refuse what is not a finite number > 0."""
    if value is not None and not 0 < value < math.inf:
        raise typer.BadParameter(f"{value:g} is not a finite number > 0")
    return value


def _split(option: str, text: str, expected: str) -> list[str]:
    items = [item.strip() for item in text.split(",")]
    if not all(items):
        raise _invalid(option, text, expected)
    return items


def _invalid(option: str, text: str, expected: str) -> BadInput:
    return BadInput(f"{option}: {quote(text)} is not valid; expected {expected}")
