"""Options whose value is a list: ``--gpus 1,2,4``, ``--power-limit 100,150,none``."""

import math
from collections.abc import Callable
from typing import TypeVar

from wattlaw.errors import BadInput
from wattlaw.study.base import MAX_COUNT
from wattlaw.text import quote

Item = TypeVar("Item")


def parse_list(name: str, text: str, expected: str, convert: Callable[[str], Item]) -> list[Item]:
    """Return the items of an option's value in their order, without duplicates.

    Raises
    ------
    BadInput
        ``convert`` raises a ValueError for an item; ``expected`` says what is allowed.
    """
    items = [item.strip() for item in text.split(",")]
    values = []
    for item in items if all(items) else [text]:
        try:
            values.append(convert(item))
        except ValueError:
            raise BadInput(f"{name}: {quote(item)} is not valid; expected {expected}") from None
    return list(dict.fromkeys(values))


def parse_counts(name: str, text: str | None) -> list[int]:
    """Return counts in increasing order; an empty list for None."""
    expected = f"integers from 1 to {MAX_COUNT:,} separated by commas, such as 1,2,4"
    return [] if text is None else sorted(parse_list(name, text, expected, _count))


def parse_limits(name: str, text: str | None) -> list[float | None]:
    """Return limits, None for ``none``; an empty list for None."""
    expected = "numbers > 0 or none, separated by commas, such as 100,150,none"
    return [] if text is None else parse_list(name, text, expected, _limit)


def _limit(text: str) -> float | None:
    if text.lower() == "none":
        return None
    value = float(text)
    if not 0 < value < math.inf:
        raise ValueError(text)
    return value


def _count(text: str) -> int:
    # An integer with very many digits is refused before it is converted.
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0
    if not 1 <= value <= MAX_COUNT:
        raise ValueError(text)
    return value
