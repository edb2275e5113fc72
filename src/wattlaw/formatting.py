"""Numbers, intervals and units as text. What is missing is a dash, never a 0."""

import math
from collections.abc import Iterable
from typing import Any

import pandas as pd

from wattlaw.terminal import escape_invisible

NONE = "–"
#: From here on a number is told as a power of ten.
_LARGE = 1e9
#: From small to large: what an energy in joules is divided by, and the unit that makes.
_JOULES = ((1.0, "J"), (1e3, "kJ"), (1e6, "MJ"), (1e9, "GJ"))


def known(value: Any) -> bool:
    """Say whether there is a value: not None, NaN or NaT."""
    return value is not None and not (pd.api.types.is_scalar(value) and bool(pd.isna(value)))


def number(value: Any, digits: int = 3) -> str:
    """Return a number to so many digits; whole from where all its digits are before the point."""
    if not known(value):
        return NONE
    value = float(value)
    if not math.isfinite(value):
        return "∞" if value > 0 else "−∞"
    if abs(value) >= _LARGE:
        told = f"{value:.{digits - 1}e}".replace("e+", "e")
    elif value.is_integer() or abs(value) >= 10**digits:
        told = f"{value:,.0f}"
    else:
        told = f"{value:.{digits}g}"
    return told.replace("-", "−")


def interval(low: Any, high: Any, digits: int = 3) -> str:
    """Return ``low to high``; a dash where either is missing or not bounded."""
    if not (known(low) and known(high) and math.isfinite(low) and math.isfinite(high)):
        return NONE
    return f"{number(low, digits)} to {number(high, digits)}"


def with_interval(value: Any, low: Any, high: Any, digits: int = 3) -> str:
    """Return ``value (low to high)``, or the value alone where there is no interval."""
    bounds = interval(low, high, digits)
    return number(value, digits) + ("" if bounds == NONE else f" ({bounds})")


def p_value(value: Any) -> str:
    """Return a p value to two digits; below 0.001 only that."""
    if not known(value):
        return NONE
    return "< 0.001" if value < 0.001 else number(value, 2)


def percent(share: Any, digits: int = 3) -> str:
    """Return a share as a percentage."""
    return NONE if not known(share) else f"{number(100 * float(share), digits)} %"


def change(ratio: Any, digits: int = 2) -> str:
    """Return a ratio as the change in percent, with its sign: 0.85 as ``−15 %``."""
    if not known(ratio):
        return NONE
    percents = 100 * (float(ratio) - 1)
    if abs(percents) < 0.05:
        return "±0 %"
    return f"{'+' if percents > 0 else '−'}{number(abs(percents), digits)} %"


def joules(values: Iterable[Any]) -> tuple[float, str]:
    """Return the unit in which a column of energies reads best: its size in joules and its name."""
    there = [abs(float(value)) for value in values if known(value)]
    middle = sorted(there)[len(there) // 2] if there else 0.0
    fitting = [unit for unit in _JOULES if middle >= unit[0]]
    return fitting[-1] if fitting else _JOULES[0]


def unit_of(values: Iterable[Any], units: Iterable[tuple[str, float, float]]) -> tuple[float, str]:
    """Return the unit in which a column reads best: that of its median.

    ``units`` are name, size and the least value told in it, from large to small.
    """
    there = sorted(float(value) for value in values if known(value))
    middle = there[len(there) // 2] if there else 0.0
    return next((size, name) for name, size, least in units if middle >= least)


def text(value: Any, most: int = 1500) -> str:
    """Return any value as one piece of text that a page and a picture can hold.

    Control and invisible characters are replaced; what is very long is cut.
    """
    if not known(value):
        return NONE
    shown = clean(str(value))
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def clean(words: str) -> str:
    """Return text in which characters that control or cannot be seen are replaced."""
    return escape_invisible(words, "\ufffd")


def plural(count: int, noun: str) -> str:
    """Return ``1 run``, ``2 runs``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def sentence(words: str) -> str:
    """Return words as a sentence: with a capital and a full stop."""
    told = ended(words)
    return told[:1].upper() + told[1:]


def ended(words: str) -> str:
    """Return words with a full stop."""
    told = words.strip()
    return told if told.endswith((".", "!", "?")) else f"{told}."


def unbroken(cell: str) -> str:
    """Return a cell of numbers that breaks only before a bracket, if at all."""
    return cell.replace(" ", "\u00a0").replace("\u00a0(", " (")
