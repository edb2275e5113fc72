"""What figures are put together from: panels with lines, points and intervals."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import altair as alt
import numpy as np
import pandas as pd

from wattlaw.report.figures.axes import linear_scale, log_scale, workers_axis
from wattlaw.report.figures.facets import Arranged, beside, summarised
from wattlaw.report.figures.labels import lines_of
from wattlaw.report.theme import FAINT, FONT_SIZE, INK, look, styled

POINT = 55
_DIGITS = 5


def compact(frame: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Return the columns with numbers to five digits: what a page has to hold of them."""
    kept = frame[list(dict.fromkeys(columns))].copy()
    for name in kept.select_dtypes("number").columns:
        values = kept[name].to_numpy(float)
        size = 10.0 ** (_DIGITS - 1 - np.floor(np.log10(np.abs(np.where(values, values, 1.0)))))
        with np.errstate(all="ignore"):
            kept[name] = np.round(values * size) / size
    return kept.replace([np.inf, -np.inf], np.nan)


def axis(
    column: str, title: str, values: Iterable[float], log: bool = False, zero: bool = False
) -> alt.Y:
    """Return a vertical axis that holds all values."""
    scale, ticks = log_scale(values) if log else linear_scale(values, zero=zero)
    return alt.Y(f"{column}:Q", title=title, scale=scale, axis=ticks)


def curve(
    table: pd.DataFrame, x: alt.X, y: alt.Y, looks: dict[str, Any], told: str, joined: bool = True
) -> list[alt.Chart]:
    """Return points at ``at, mean`` with bars from ``low`` to ``high``, joined by lines.

    ``told`` is the quantity in the points' tooltip.
    """
    bars = table.dropna(subset=["low", "high"])
    layers = []
    if len(bars):
        base = alt.Chart(compact(bars, "at", "low", "high", "line"))
        bar = base.mark_rule(strokeWidth=1.3)
        layers.append(bar.encode(x=x, y=on(y, "low"), y2="high:Q", color=looks["color"]))
    base = alt.Chart(compact(table, "at", "gpus", "mean", "line"))
    color, dash = looks["color"], looks["strokeDash"]
    if joined:
        line = base.mark_line(strokeWidth=1.6)
        layers.append(line.encode(x=x, y=on(y, "mean"), color=color, strokeDash=dash))
    points = base.mark_point(filled=True, size=POINT, opacity=0.95)
    told_too = [alt.Tooltip("line:N", title="line"), alt.Tooltip("gpus:Q", title="workers"),
                alt.Tooltip("mean:Q", title=told)]  # fmt: skip
    layers.append(
        points.encode(x=x, y=on(y, "mean"), color=color, shape=looks["shape"], tooltip=told_too)
    )
    return layers


Channel = TypeVar("Channel", alt.X, alt.Y)


def on(y: Channel, column: str) -> Channel:
    """Return the axis for another column."""
    other: Channel = y.copy(deep=False)
    other.shorthand = f"{column}:Q"
    return other


def level(value: float, column: str = "y", color: str = FAINT) -> alt.Chart:
    """Return a thin dashed line across a panel at a height (``column="x"``: at a place)."""
    data = alt.Chart(pd.DataFrame({column: [value]}))
    marks = data.mark_rule(strokeDash=[4, 4], color=color, strokeWidth=1.2)
    chart: alt.Chart = marks.encode(y="y:Q") if column == "y" else marks.encode(x="x:Q")
    return chart


def across(
    column: str, title: str, values: Iterable[float], log: bool = False, zero: bool = False
) -> alt.X:
    """Return a horizontal axis that holds all values."""
    scale, ticks = log_scale(values, 5) if log else linear_scale(values, zero=zero, most=5)
    return alt.X(f"{column}:Q", title=title, scale=scale, axis=ticks)


def told_apart(
    table: pd.DataFrame, x: alt.X, y: alt.Y, looks: dict[str, Any], *columns: str
) -> list[alt.Chart]:
    """Return the intervals ``<column>_low`` to ``_high`` of points, of the first column upright."""
    up, along = columns
    layers = []
    for column, bar in ((up, "y"), (along, "x")):
        low, high = f"{column}_low", f"{column}_high"
        there = table.dropna(subset=[low, high])
        if there.empty:
            continue
        base = alt.Chart(compact(there, low, high, up, along, "line")).mark_rule(strokeWidth=1.3)
        ends = {"y": on(y, low), "y2": f"{high}:Q", "x": x} if bar == "y" else {
            "x": on(x, low), "x2": f"{high}:Q", "y": y}  # fmt: skip
        layers.append(base.encode(color=looks["color"], **ends))
    return layers


def panel(
    layers: Sequence[Any], title: str, width: int, height: int, subtitle: str = ""
) -> alt.LayerChart:
    """Return layers as one panel."""
    below: dict[str, Any] = {"subtitle": subtitle} if subtitle else {}
    words = alt.TitleParams(
        title, anchor="start", fontSize=FONT_SIZE, offset=7, color=INK, frame="group", **below
    )
    return alt.LayerChart(layer=list(layers), width=width, height=height, title=words)


def picture(
    panels: Sequence[Any], columns: int, title: str, words: Sequence[str] = (), width: int = 560
) -> alt.ConcatChart:
    """Return panels as a figure; ``words`` go below the title, cut into lines of ``width``."""
    said = "; ".join(word for word in words if word)
    return styled(panels, columns, title, lines_of(said, width) if said else ())


def against_workers(
    shown: Arranged,
    table: pd.DataFrame,
    title: str,
    axis_title: str,
    words: Sequence[str] = (),
    log: bool = False,
    zero: bool = False,
    at_level: float | None = None,
) -> alt.ConcatChart:
    """Return ``mean`` (with ``low``, ``high``) of ``table`` against workers, in panels of lines."""
    width, height, columns = shown.size
    looks = look(shown.lines, shown.width)
    table = beside(table, shown.lines, width)
    panels = []
    for name in shown.panels:
        mine = shown.of(name, table)
        if mine.empty:
            continue
        y = axis("mean", axis_title, ends(mine, at_level), log, zero)
        x = workers_axis(mine["gpus"], width)
        layers = [] if at_level is None else [level(at_level)]
        layers += curve(mine, x, y, looks, axis_title)
        panels.append(panel(layers, name, width, height))
    return picture(panels, columns, title, [*words, shown.left_out], shown.width)


@dataclass(frozen=True)
class Quantity:
    """A column, how its axis is called, what it is multiplied with, and whether the axis is log."""

    column: str
    title: str
    factor: float = 1.0
    log: bool = False


def side_by_side(
    shown: Arranged, quantities: Sequence[Quantity], title: str, words: Sequence[str]
) -> alt.ConcatChart:
    """Return several quantities against workers next to each other, a row for each panel."""
    looks = look(shown.lines, len(quantities) * _WIDE[0])
    width, height = _WIDE[0], _WIDE[1] if len(shown.panels) == 1 else _WIDE[2]
    panels = []
    for name in shown.panels:
        for quantity in quantities:
            table = summarised(shown.of(name), quantity.column)
            table[["mean", "low", "high"]] *= quantity.factor
            if table.empty:
                continue
            table = beside(table, shown.lines, width)
            y = axis("mean", quantity.title, ends(table), log=quantity.log, zero=True)
            x = workers_axis(table["gpus"], width)
            panels.append(panel(curve(table, x, y, looks, quantity.title), name, width, height))
    return picture(panels, len(quantities), title, words, len(quantities) * width)


#: Width of panels side by side, height of a single row, and of one of several.
_WIDE = (400, 260, 200)


def ends(table: pd.DataFrame, *also: float | None) -> list[float]:
    """Return all heights that an axis has to hold."""
    values = table[[name for name in ("mean", "low", "high") if name in table]].to_numpy(float)
    return [*values.ravel(), *(value for value in also if value is not None)]
