"""Axes with a unit, and space for every interval."""

import math
from collections.abc import Iterable

import altair as alt
import numpy as np

from wattlaw.report.theme import CHARACTER_WIDTH

WORKERS = "workers (GPUs or CPU processes)"
#: A count axis extends beyond its first and last count by this factor.
MARGIN = 1.25


def workers_axis(counts: Iterable[float], column: str = "at") -> alt.X:
    """Return a logarithmic axis with ticks at the measured worker counts."""
    return counts_axis(counts, WORKERS, column)


def counts_axis(counts: Iterable[float], title: str, column: str = "at") -> alt.X:
    """Return a logarithmic axis with ticks at the measured counts."""
    ticks = sorted({round(count) for count in counts})
    domain = [ticks[0] / MARGIN, ticks[-1] * MARGIN]
    return alt.X(
        f"{column}:Q",
        title=title,
        scale=alt.Scale(type="log", base=2, domain=domain, nice=False),
        axis=alt.Axis(
            values=ticks, format="d", labelOverlap="greedy", labelSeparation=CHARACTER_WIDTH
        ),
    )


def x_axis(
    column: str, title: str, values: Iterable[float], *, log: bool = False, zero: bool = False
) -> alt.X:
    """Return a horizontal axis that contains all values."""
    scale, axis = _log_scale(values, 5) if log else linear_scale(values, 5, zero=zero)
    return alt.X(f"{column}:Q", title=title, scale=scale, axis=axis)


def y_axis(
    column: str, title: str, values: Iterable[float], *, log: bool = False, zero: bool = False
) -> alt.Y:
    """Return a vertical axis that contains all values."""
    scale, axis = _log_scale(values, 7) if log else linear_scale(values, 6, zero=zero)
    return alt.Y(f"{column}:Q", title=title, scale=scale, axis=axis)


def _log_scale(values: Iterable[float], ticks: int) -> tuple[alt.Scale, alt.Axis]:
    """Return a logarithmic scale that contains all values above 0, and its axis."""
    finite = [float(value) for value in values if math.isfinite(value) and value > 0]
    low, high = min(finite, default=1.0), max(finite, default=1.0)
    margin = max((high / low) ** 0.07, 1.06)
    domain = [_round(low / margin), _round(high * margin)]
    return alt.Scale(type="log", domain=domain, nice=False), _axis(domain, ticks)


def linear_scale(
    values: Iterable[float], ticks: int, *, zero: bool = False
) -> tuple[alt.Scale, alt.Axis]:
    """Return a linear scale that contains all values (with ``zero``, 0 too), and its axis."""
    finite = [float(value) for value in values if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=1.0)
    if zero:
        low, high = min(0.0, low), max(0.0, high) or float(low == 0)
    margin = 0.07 * (high - low) or 0.1 * abs(high) or 1.0
    domain = [
        low if zero and low == 0 else _round(low - margin),
        high if zero and high == 0 else _round(high + margin),
    ]
    return alt.Scale(domain=domain, nice=False, zero=False), _axis(domain, ticks)


def _axis(domain: list[float], ticks: int) -> alt.Axis:
    sizes = [abs(end) for end in domain if end]
    if max(sizes) < 1e-3:
        label = ".3~e"
    else:
        label = ",.6~s" if max(sizes) >= 1e5 and min(sizes) >= 1 else ",.6~r"
    return alt.Axis(tickCount=ticks, format=label, labelOverlap="greedy", labelSeparation=3)


def _round(value: float) -> float:
    return float(np.format_float_positional(value, precision=6, fractional=False))
