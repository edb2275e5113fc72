"""Arguments of the Python API: one value or several, each checked under its name."""

import operator
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import Any

from wattlaw.common.errors import BadInput
from wattlaw.common.text import quote
from wattlaw.study.base_model import MAX_COUNT


def listed(given: Any) -> list[Any]:
    """Return the items of an argument that is one value or several; None is a value."""
    if isinstance(given, Iterable) and not isinstance(given, str | PathLike):
        return list(given)
    return [given]


def counts(name: str, given: int | Iterable[int]) -> list[int]:
    """Return whole numbers from 1. Raises ``BadInput`` with the name of the argument."""
    try:
        values = [operator.index(value) for value in listed(given)]
    except TypeError:
        values = [0]
    if not all(0 < value <= MAX_COUNT for value in values):
        raise BadInput(f"{name}: given {quote(given)}; allowed: whole numbers from 1")
    return values


def amounts(name: str, given: float | Iterable[float | None] | None) -> list[float | None]:
    """Return numbers above 0, and None. Raises ``BadInput`` with the name of the argument."""
    values = listed(given)
    for value in values:
        try:
            is_allowed = value is None or 0 < value < float("inf")
        except TypeError:
            is_allowed = False
        if not is_allowed:
            raise BadInput(f"{name}: given {quote(value)}; allowed: numbers above 0, and None")
    return values


def path_of(name: str, given: str | PathLike[str]) -> Path:
    """Return a path. Raises ``BadInput`` with the name of the argument."""
    if not isinstance(given, str | PathLike):
        raise BadInput(f"{name}: given {quote(given)}; allowed: a path")
    return Path(given)
