"""Numbers, intervals and units as text, for the command line, messages and the report.

A missing value is a dash, never 0. Nothing here needs pandas, so that commands start fast.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from wattlaw.common.terminal import escape_invisible

MISSING = "–"
#: Numbers of at least this size are written as a power of ten.
_LEAST_AS_POWER = 1e9

#: Name and size of each unit, and the smallest value written in it; from large to small.
Units = tuple[tuple[str, float, float], ...]
TIME_UNITS: Units = (
    ("d", 86400.0, 172800.0), ("h", 3600.0, 5400.0), ("min", 60.0, 120.0), ("s", 1.0, 0.1),
    ("ms", 1e-3, 0.0),
)  # fmt: skip
ENERGY_UNITS: Units = (
    ("MWh", 3.6e9, 3.6e9), ("kWh", 3.6e6, 3.6e5), ("kJ", 1e3, 1e3), ("J", 1.0, 0.0),
)  # fmt: skip
#: Time of workers in hours; what a worker is called stands before the unit.
WORK_UNITS: Units = (
    ("hours", 1.0, 0.1), ("minutes", 1 / 60, 1 / 60), ("seconds", 1 / 3600, 0.0),
)  # fmt: skip


class Estimate(Protocol):
    @property
    def mean(self) -> float: ...
    @property
    def low(self) -> float | None: ...
    @property
    def high(self) -> float | None: ...


def known(value: Any) -> bool:
    try:
        return value is not None and bool(value == value)  # noqa: PLR0124
    except (TypeError, ValueError):  # pandas.NA is neither true nor false
        return False


def number(value: Any, digits: int = 3) -> str:
    """Return a number with ``digits`` significant digits; all digits before the point are shown."""
    if not known(value):
        return MISSING
    value = float(value)
    if not math.isfinite(value):
        return "∞" if value > 0 else "−∞"
    if abs(value) >= _LEAST_AS_POWER:
        text = f"{value:.{digits - 1}e}".replace("e+", "e")
    elif value.is_integer() or abs(value) >= 10 ** (digits - 1):
        text = f"{value:,.0f}"
    else:
        text = f"{value:.{digits}g}"
    return text.replace("-", "−")


def power_limit_text(watts: Any) -> str:
    """Return a power limit, such as ``250 W``; ``none`` for 0 W, which no device applies."""
    return "none" if watts == 0 else f"{number(watts, 9)} W"


def interval(low: Any, high: Any, digits: int = 3) -> str:
    """Return ``low to high``; a dash where either is missing or infinite."""
    if not (known(low) and known(high) and math.isfinite(low) and math.isfinite(high)):
        return MISSING
    return f"{number(low, digits)} to {number(high, digits)}"


def estimate_text(value: Estimate | float | None, unit: str = "", size: float = 1.0) -> str:
    """Return ``5.2 h (4.9 to 5.5)``, or ``5.2 h`` where the interval is missing or has no width."""
    if value is None:
        return MISSING
    if isinstance(value, int | float):
        return f"{number(value / size)} {unit}".rstrip()
    text = f"{number(value.mean / size)} {unit}".rstrip()
    if value.low is None or value.high is None or value.low == value.high:
        return text
    return f"{text} ({interval(value.low / size, value.high / size)})"


def duration_text(value_s: Estimate | float | None) -> str:
    """Return a time in seconds as ``5.2 h (4.9 to 5.5)``, in the unit that suits it."""
    return _in_best_unit(value_s, TIME_UNITS)


def energy_text(value_j: Estimate | float | None) -> str:
    """Return an energy in joules as ``1.2 kWh (1.1 to 1.3)``, in the unit that suits it."""
    return _in_best_unit(value_j, ENERGY_UNITS)


def work_text(hours: Estimate | float | None, worker: str = "GPU") -> str:
    """Return the hours of all workers, as ``0.6 GPU-hours (0.5 to 0.7)`` or ``1.8 GPU-seconds``."""
    return _in_best_unit(
        hours, tuple((f"{worker}-{unit}", size, least) for unit, size, least in WORK_UNITS)
    )


def _in_best_unit(value: Estimate | float | None, units: Units) -> str:
    if value is None:
        return MISSING
    size, unit = choose_unit([value if isinstance(value, int | float) else value.mean], units)
    return estimate_text(value, unit, size)


def choose_unit(values: Iterable[Any], units: Units) -> tuple[float, str]:
    """Return size and name of the unit that suits a column: that of its median."""
    sizes = sorted(abs(float(value)) for value in values if known(value))
    median = sizes[len(sizes) // 2] if sizes else 0.0
    return next((size, name) for name, size, least in units if median >= least)


def p_value(value: Any) -> str:
    if not known(value):
        return MISSING
    return "< 0.001" if value < 0.001 else number(value, 2)


def percent(share: Any, digits: int = 3) -> str:
    return MISSING if not known(share) else f"{number(100 * float(share), digits)} %"


def change(ratio: Any, digits: int = 2) -> str:
    """Return a ratio as the change in percent, with its sign: 0.85 as ``−15 %``."""
    if not known(ratio):
        return MISSING
    percents = 100 * (float(ratio) - 1)
    if abs(percents) < 0.05:
        return "±0 %"
    return f"{'+' if percents > 0 else '−'}{number(abs(percents), digits)} %"


def less(share: float, noun: str) -> str:
    """Return a change, such as −0.55, as ``55 % less time``."""
    return f"{change(1 + share).lstrip('+−±')} {'more' if share > 0 else 'less'} {noun}"


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def names_text(names: Sequence[str]) -> str:
    """Return ``a, b and c``."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def printable(value: Any, most: int = 1500) -> str:
    """Return any value as text without invisible characters, cut after ``most`` characters."""
    if not known(value):
        return MISSING
    text = replace_invisible(str(value))
    return text if len(text) <= most else text[: most - 1] + "…"


def replace_invisible(text: str) -> str:
    """Return text in which control characters and invisible ones are replaced by a sign."""
    return escape_invisible(text, "\ufffd")


def sentence(text: str) -> str:
    text = full_stop(text)
    return text[:1].upper() + text[1:]


def full_stop(text: str) -> str:
    text = text.strip()
    return text if text.endswith((".", "!", "?")) else f"{text}."


def no_breaks(cell: str) -> str:
    """Return numbers that break into lines only before a bracket, if at all."""
    return cell.replace(" ", "\u00a0").replace("\u00a0(", " (")
