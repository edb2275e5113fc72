"""Axes with a unit, ticks that do not run into each other, and room for every interval."""

import math
from collections.abc import Iterable, Sequence

import altair as alt
import numpy as np

from wattlaw.report.theme import CHARACTER

WORKERS = "workers (GPUs or CPU processes)"
#: Ticks of a decade, from many to few.
_DECADES = ((1.0, 2.0, 5.0), (1.0, 3.0), (1.0,))
_GAP = 8.0  # pixels between two labels
#: A count axis goes on beyond its first and last count by this factor.
MARGIN = 1.25


def workers_axis(counts: Iterable[float], width: int, column: str = "at") -> alt.X:
    """Return a logarithmic axis with ticks at the worker counts that were measured."""
    return counts_axis(counts, WORKERS, width, column)


def counts_axis(counts: Iterable[float], title: str, width: int, column: str = "at") -> alt.X:
    """Return a logarithmic axis with ticks at the counts that were measured."""
    there = sorted({round(count) for count in counts})
    low, high = there[0] / MARGIN, there[-1] * MARGIN
    across = [width * math.log(count / low) / math.log(high / low) for count in there]
    return alt.X(
        f"{column}:Q",
        title=title,
        scale=alt.Scale(type="log", base=2, domain=[low, high], nice=False),
        axis=alt.Axis(values=_apart(there, across), format="d", labelOverlap=False, grid=True),
    )


def _apart(counts: Sequence[int], across: Sequence[float]) -> list[int]:
    """Return the first, the last, and those between them whose labels have room."""
    kept = [0]
    last = len(counts) - 1
    for i in range(1, len(counts)):
        ends = [kept[-1]] if i == last else [kept[-1], last]
        need = [(len(str(counts[i])) + len(str(counts[j]))) / 2 * CHARACTER + _GAP for j in ends]
        if all(abs(across[i] - across[j]) >= room for j, room in zip(ends, need, strict=True)):
            kept.append(i)
    if kept[-1] != last:
        kept.append(last)
    return [counts[i] for i in kept]


def log_scale(values: Iterable[float], most: int = 7) -> tuple[alt.Scale, alt.Axis]:
    """Return a logarithmic scale that holds all values, and its ticks; values are above 0."""
    there = [float(value) for value in values if math.isfinite(value) and value > 0]
    low, high = min(there, default=1.0), max(there, default=1.0)
    room = max((high / low) ** 0.07, 1.06)
    low, high = low / room, high * room
    scale = alt.Scale(type="log", domain=[_short(low), _short(high)], nice=False, clamp=False)
    return scale, _axis(_log_ticks(low, high, most))


def linear_scale(
    values: Iterable[float], zero: bool = False, most: int = 6
) -> tuple[alt.Scale, alt.Axis]:
    """Return a linear scale that holds all values (and 0 if so wished), and its ticks."""
    there = [float(value) for value in values if math.isfinite(value)]
    low, high = min(there, default=0.0), max(there, default=1.0)
    if zero:
        low, high = min(0.0, low), max(0.0, high)
    room = 0.07 * (high - low) or 0.1 * abs(high) or 1.0
    bottom = low if zero and low == 0 else low - room
    top = high if zero and high == 0 else high + room
    scale = alt.Scale(domain=[_short(bottom), _short(top)], nice=False, zero=False)
    return scale, _axis(_linear_ticks(bottom, top, most))


def _axis(ticks: list[float]) -> alt.Axis:
    sizes = [abs(tick) for tick in ticks if tick]
    if min(sizes, default=1.0) < 1e-4:
        label = ".3~e"
    elif max(sizes, default=0.0) >= 1e5 and min(sizes) >= 1:
        label = ",.6~s"
    else:
        label = ",.6~r"
    return alt.Axis(values=ticks, format=label, labelOverlap=True)


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    tens = [10.0**k for k in range(first, last + 1)]
    for steps in _DECADES:
        ticks = [ten * step for ten in tens for step in steps]
        ticks = [_short(tick) for tick in ticks if low <= tick <= high]
        if len(ticks) <= most:
            break
    if len(ticks) > most:
        ticks = ticks[:: -(-len(ticks) // most)]
    return ticks if len(ticks) >= 3 else _linear_ticks(low, high, most)


def _linear_ticks(low: float, high: float, most: int) -> list[float]:
    if not high > low:
        return [_short(low)]
    rough = (high - low) / most
    ten = 10.0 ** math.floor(math.log10(rough))
    step = next((s * ten for s in (1, 2, 2.5, 5) if s * ten >= rough), 10 * ten)
    first = math.ceil(low / step - 1e-9)
    return [_short(k * step) for k in range(first, math.floor(high / step + 1e-9) + 1)]


def _short(value: float) -> float:
    return float(np.format_float_positional(value, precision=6, fractional=False))
