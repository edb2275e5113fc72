"""Parts of figures: axes that contain every interval, panels, lines, points and intervals."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import altair as alt
import numpy as np
import pandas as pd
from altair.utils.schemapi import debug_mode

from wattlaw.common.formatting import plural
from wattlaw.report.figures.facets import Facets, dodge, mean_and_sd
from wattlaw.report.figures.labels import wrap_text
from wattlaw.report.theme import (
    CHARACTER_WIDTH,
    FAINT,
    FONT_SIZE,
    INK,
    MARGIN,
    PAGE_WIDTH,
    Spec,
    line_styles,
    themed,
)

POINT = 55
SD_BARS = "Points are means, bars the standard deviation over repeats."
CI_BARS = "Bars are 95 % intervals."
_DIGITS = 5
#: Width of panels side by side, height of a single row, and of one of several rows.
_ROW_WIDTH, _ROW_HEIGHT, _ROWS_HEIGHT = 400, 260, 200

Channel = TypeVar("Channel", alt.X, alt.Y)
Styles = Mapping[str, Any]


def compact(table: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Return the columns with numbers of five digits, to keep the page small."""
    kept = table[list(dict.fromkeys(columns))].copy()
    for name in kept.select_dtypes("number").columns:
        values = kept[name].to_numpy(float)
        size = 10.0 ** (_DIGITS - 1 - np.floor(np.log10(np.abs(np.where(values, values, 1.0)))))
        with np.errstate(all="ignore"):
            kept[name] = np.round(values * size) / size
    return kept.replace([np.inf, -np.inf], np.nan)


def column_of(channel: alt.X | alt.Y) -> str:
    """Return the column that a channel encodes."""
    return str(channel.shorthand).rpartition(":")[0]


def with_column(channel: Channel, column: str) -> Channel:
    """Return the channel for another column on the same axis."""
    other: Channel = channel.copy(deep=False)
    other.shorthand = f"{column}:Q"
    return other


def points(
    table: pd.DataFrame, x: alt.X, y: alt.Y, styles: Styles, tooltip: Mapping[str, str],
    size: int = POINT,
) -> Any:  # fmt: skip
    """Return points in the styles of their ``line``; ``tooltip`` has a title for each column."""
    tooltips = [alt.Tooltip(column, title=title) for column, title in tooltip.items()]
    base = alt.Chart(compact(table, column_of(x), column_of(y), "line", *tooltip))
    base = base.mark_point(filled=True, size=size, opacity=0.95)
    return base.encode(x=x, y=y, shape=styles["shape"], tooltip=tooltips, **_by_line(styles))


def error_bars(
    table: pd.DataFrame, x: alt.X, y: alt.Y, styles: Styles, low: str = "low", high: str = "high",
    *, horizontal: bool = False,
) -> list[alt.Chart]:  # fmt: skip
    """Return bars from ``low`` to ``high``; none where there are no intervals."""
    table = table.dropna(subset=[low, high])
    if table.empty:
        return []
    base = alt.Chart(compact(table, column_of(x), column_of(y), low, high, "line"))
    base = base.mark_rule(strokeWidth=1.3).encode(**_by_line(styles))
    if horizontal:
        return [base.encode(x=with_column(x, low), x2=f"{high}:Q", y=y)]
    return [base.encode(y=with_column(y, low), y2=f"{high}:Q", x=x)]


def line(table: pd.DataFrame, x: alt.X, y: alt.Y, styles: Styles, width: float = 1.6) -> Any:
    """Return a line for each ``line`` of the table."""
    base = alt.Chart(compact(table, column_of(x), column_of(y), "line"))
    base = base.mark_line(strokeWidth=width).encode(strokeDash=styles["strokeDash"])
    return base.encode(x=x, y=y, **_by_line(styles))


def band(
    table: pd.DataFrame, x: alt.X, y: alt.Y, styles: Styles, low: str = "low", high: str = "high",
    opacity: float = 0.2,
) -> Any:  # fmt: skip
    """Return the area between ``low`` and ``high`` for each ``line`` of the table."""
    base = alt.Chart(compact(table, column_of(x), low, high, "line"))
    base = base.mark_area(opacity=opacity, clip=True).encode(**_by_line(styles))
    return base.encode(x=x, y=with_column(y, low), y2=f"{high}:Q")


def _by_line(styles: Styles) -> dict[str, Any]:
    return {name: styles[name] for name in ("color", "xOffset", "yOffset") if name in styles}


def curve(
    table: pd.DataFrame, x: alt.X, y: alt.Y, styles: Styles, quantity: str, *, joined: bool = True
) -> list[alt.Chart]:
    """Return points at ``at, mean`` with bars from ``low`` to ``high``, joined by lines.

    ``quantity`` is the title of ``mean`` in the tooltip.
    """
    lines = [line(table, x, y, styles)] if joined else []
    tooltip = {"line": "line", "gpus": "workers", "mean": quantity}
    bars = error_bars(table, x, y, styles)
    return [*bars, *lines, points(table, x, y, styles, tooltip)]


def reference_line(value: float, channel: str = "y") -> Any:
    """Return a thin dashed line across a panel at a value of ``x`` or ``y``."""
    rule = alt.Chart(pd.DataFrame({channel: [value]}))
    rule = rule.mark_rule(strokeDash=[4, 4], color=FAINT, strokeWidth=1.2)
    return rule.encode(**{channel: f"{channel}:Q"})


def panel(
    layers: Sequence[Any], title: str, width: int, height: int, subtitle: str = ""
) -> alt.LayerSpec:
    """Return layers as a panel."""
    optional: dict[str, Any] = {"subtitle": subtitle} if subtitle else {}
    title_params = alt.TitleParams(
        title, anchor="start", fontSize=FONT_SIZE, offset=7, color=INK, frame="group", **optional
    )
    with debug_mode(False):  # layers have their data apart until the chart is complete
        return alt.LayerSpec(layer=list(layers), width=width, height=height, title=title_params)


def concat(panels: Sequence[Any], columns: int, notes: Sequence[str], width: int) -> Spec:
    """Return panels as a figure; ``notes``, sentences, are its subtitle, in lines of ``width``."""
    return themed(panels, columns, wrap_text(" ".join(filter(None, notes)), width))


def not_shown(count: int, noun: str) -> str:
    """Return a sentence on what there is no space for; empty if that is nothing."""
    verb = "is" if count == 1 else "are"
    return f"{plural(count, f'more {noun}')} {verb} not shown." if count > 0 else ""


def draw_panels(
    facets: Facets,
    table: pd.DataFrame,
    layers: Callable[[pd.DataFrame], Sequence[Any]],
    notes: Sequence[str],
    size: tuple[int, int, int] | None = None,
) -> Spec:
    """Return a figure with a panel of ``layers`` for each panel's rows of ``table``."""
    width, height, columns = size or facets.size
    panels = [
        panel(layers(rows), name, width, height)
        for name in facets.panels
        if len(rows := facets.panel_rows(name, table))
    ]
    return concat(panels, columns, [*notes, facets.omitted], facets.width)


@dataclass(frozen=True)
class Quantity:
    """A column, the title of its axis, a factor on its values, and whether the axis is log.

    ``{unit}`` in the title becomes the unit of work of the panel.
    """

    column: str
    title: str
    factor: float = 1.0
    log: bool = False


def against_workers(facets: Facets, quantities: Sequence[Quantity], notes: Sequence[str]) -> Spec:
    """Return the means of a quantity against workers; several of them next to each other."""
    width, height, columns = facets.size
    if len(quantities) > 1:
        height = _ROW_HEIGHT if len(facets.panels) == 1 else _ROWS_HEIGHT
        width, columns = _ROW_WIDTH, len(quantities)
    styles = line_styles(facets.lines, min(columns * (width + 70), PAGE_WIDTH))
    panels = []
    for name in facets.panels:
        for quantity in quantities:
            table = mean_and_sd(facets.panel_rows(name), quantity.column, quantity.factor)
            if table.empty:
                continue
            table = dodge(table, facets.lines, width)
            title = facets.in_unit(quantity.title, facets.panel_rows(name))
            y = y_axis("mean", title, y_values(table), log=quantity.log, zero=True)
            layers = curve(table, counts_axis(table["gpus"]), y, styles, title)
            panels.append(panel(layers, name, width, height))
    return concat(panels, columns, [*notes, facets.omitted], facets.width)


def y_values(table: pd.DataFrame, *others: float | None) -> list[float]:
    """Return all values that a vertical axis must contain."""
    columns = [name for name in ("mean", "low", "high") if name in table]
    values: Iterable[float] = table[columns].to_numpy(float).ravel()
    return [*values, *(value for value in others if value is not None)]


WORKERS = "workers (GPUs or CPU processes)"


def counts_axis(counts: Iterable[float], title: str = WORKERS) -> alt.X:
    """Return a logarithmic axis of ``at`` with ticks at the measured counts."""
    ticks = sorted({round(count) for count in counts})
    domain = [ticks[0] / MARGIN, ticks[-1] * MARGIN]
    scale = alt.Scale(type="log", base=2, domain=domain, nice=False)
    axis = alt.Axis(
        values=ticks, format="d", labelOverlap="greedy", labelSeparation=CHARACTER_WIDTH
    )
    return alt.X("at:Q", title=title, scale=scale, axis=axis)


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
    size = max(abs(low), abs(high))
    # Values that differ by rounding errors only are one value.
    margin = 0.07 * (high - low) if high - low > 1e-4 * size else 0.1 * size or 1.0
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
