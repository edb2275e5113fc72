"""Charts as Vega-Lite: axes that contain every interval, marks, panels, and one style for all.

The style is readable in grey and with colour blindness, and uses local fonts only.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from textwrap import wrap
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from wattlaw.analysis.metrics.result import plain
from wattlaw.common.formatting import plural

#: A chart, or a part of one, in Vega-Lite.
Spec = dict[str, Any]
#: Colour, shape and dash by ``line``.
Styles = Mapping[str, Spec]

#: Okabe and Ito's palette without its yellow, which is too light on white.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000"]
SHAPES = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right"]
DASHES = [[1, 0], [6, 3], [2, 2], [8, 2, 2, 2], [10, 4], [4, 2, 1, 2], [1, 3]]
INK, FAINT = "#1d2430", "#999999"
FONT_SIZE = 11
#: Mean width in pixels of a character of this size (DejaVu Sans).
CHARACTER_WIDTH = 0.6 * FONT_SIZE
#: A count axis extends beyond its first and last count by this factor.
MARGIN = 1.25
#: Largest width of a figure in pixels; it fits into the report's page.
PAGE_WIDTH = 1000
SD_BARS = "Points are means, bars the standard deviation over repeats."
CI_BARS = "Bars are 95 % intervals."
WORKERS = "workers (GPUs or CPU processes)"
_CONFIG = {
    "font": "DejaVu Sans, Verdana, Helvetica, Arial, sans-serif",
    "background": "white",
    "padding": 12,
    "title": {
        "fontSize": FONT_SIZE, "fontWeight": "bold", "subtitleFontSize": FONT_SIZE,
        "subtitleColor": "#555555", "color": INK, "subtitlePadding": 5,
    },
    "axis": {
        "labelFontSize": FONT_SIZE, "titleFontSize": FONT_SIZE, "titleFontWeight": "normal",
        "titlePadding": 7, "gridColor": "#e5e5e5", "domainColor": "#888", "tickColor": "#888",
        "labelLimit": 0, "titleLimit": 0,
    },
    "legend": {
        "labelFontSize": FONT_SIZE, "titleFontSize": FONT_SIZE, "titleFontWeight": "normal",
        "labelLimit": 0, "titleLimit": 0, "symbolSize": 80, "symbolOpacity": 1,
        "columnPadding": 18, "offset": 14,
    },
    "view": {"stroke": "#d5d5d5"},
}  # fmt: skip


def field(column: str, kind: str = "quantitative", **options: Any) -> Spec:
    return {"field": column, "type": kind, **options}


def line_styles(
    lines: Sequence[str], width: int = PAGE_WIDTH, *, points: bool = True
) -> dict[str, Spec]:
    """Return colour, shape and dash by ``line``, with one legend for all three, of as many columns
    as fit into ``width``. Without ``points``, it shows the dashes."""
    longest = max((len(line) for line in lines), default=1)
    columns = max(1, min(len(lines), int(width // (longest * CHARACTER_WIDTH + 50))))
    symbols: Spec = {"symbolDash": [1, 0], "symbolStrokeWidth": 0}
    if not points:
        symbols = {"symbolType": "stroke", "symbolSize": 500, "symbolStrokeWidth": 2}
    legend: Spec | None = {
        "title": None, "orient": "bottom", "direction": "horizontal", "columns": columns, **symbols
    }  # fmt: skip
    if list(lines) == [""]:
        legend = None
    cycle = len(COLOURS)
    # Shapes and dashes shift in each round of the colours, so that the combinations differ.
    shifted = [(i + i // cycle) % cycle for i in range(len(lines))]
    ranges: dict[str, list[Any]] = {
        "color": [COLOURS[i % cycle] for i in range(len(lines))],
        "shape": [SHAPES[i] for i in shifted],
        "strokeDash": [DASHES[i] for i in shifted],
    }
    return {
        name: field(
            "line",
            "nominal",
            scale={"domain": list(lines), "range": values},
            legend=None if points and name == "strokeDash" else legend,
        )
        for name, values in ranges.items()
    }


def look_styles(looks: Mapping[str, tuple[Any, ...]], columns: int) -> dict[str, Spec]:
    """Return colour and shape by ``line``, the first two values of each look, with one legend."""
    legend = {"title": None, "orient": "bottom", "columns": columns}
    return {
        channel: field(
            "line", "nominal", legend=legend,
            scale={"domain": list(looks), "range": [look[at] for look in looks.values()]},
        )
        for at, channel in enumerate(("color", "shape"))
    }  # fmt: skip


def layer(table: pd.DataFrame, mark: str, encoding: Mapping[str, Any], **style: Any) -> Spec:
    """Only the columns that it shows, and numbers of five digits, keep the page small."""
    channels = [each for value in encoding.values()
                for each in (value if isinstance(value, list) else [value])]  # fmt: skip
    columns = dict.fromkeys(channel["field"] for channel in channels if "field" in channel)
    rows = plain(table[[*columns]])
    for row in rows:
        row.update(
            {key: float(f"{value:.5g}") for key, value in row.items() if isinstance(value, float)}
        )
    return {"data": {"values": rows}, "mark": {"type": mark, **style}, "encoding": dict(encoding)}


def points(
    table: pd.DataFrame,
    x: Spec,
    y: Spec,
    styles: Styles,
    tooltip: Mapping[str, str],
    size: int | None = 55,
    description: str = "",
) -> Spec:
    """Without a size, it is that of the styles. ``tooltip`` has a title for each column, and the
    column ``description`` has what a page without scripts shows of a point."""
    encoding: dict[str, Any] = {"x": x, "y": y, "shape": styles["shape"], **_by_line(styles)}
    encoding["tooltip"] = [
        field(name, "quantitative" if is_numeric_dtype(table[name]) else "nominal", title=title)
        for name, title in tooltip.items()
    ]
    if description:
        encoding["description"] = field(description, "nominal")
    style: dict[str, Any] = {"filled": True, "opacity": 0.95}
    if size is None:
        encoding["size"] = styles["size"]
    else:
        style["size"] = size
    return layer(table, "point", encoding, **style)


def error_bars(
    table: pd.DataFrame,
    x: Spec,
    y: Spec,
    styles: Styles,
    low: str = "low",
    high: str = "high",
    *,
    horizontal: bool = False,
) -> list[Spec]:
    table = table.dropna(subset=[low, high])
    if table.empty:
        return []
    if horizontal:
        ends = {"x": x | {"field": low}, "x2": {"field": high}, "y": y}
    else:
        ends = {"y": y | {"field": low}, "y2": {"field": high}, "x": x}
    return [layer(table, "rule", ends | _by_line(styles), strokeWidth=1.3)]


def line(table: pd.DataFrame, x: Spec, y: Spec, styles: Styles, width: float = 1.6) -> Spec:
    encoding = {"x": x, "y": y, "strokeDash": styles["strokeDash"], **_by_line(styles)}
    return layer(table, "line", encoding, strokeWidth=width)


def band(table: pd.DataFrame, x: Spec, y: Spec, styles: Styles) -> Spec:
    encoding = {"x": x, "y": y | {"field": "low"}, "y2": {"field": "high"}, **_by_line(styles)}
    return layer(table, "area", encoding, opacity=0.2, clip=True)


def _by_line(styles: Styles) -> dict[str, Spec]:
    return {name: styles[name] for name in ("color", "xOffset") if name in styles}


def curve(
    table: pd.DataFrame, x: Spec, y: Spec, styles: Styles, quantity: str, *, joined: bool = True
) -> list[Spec]:
    """Return points at ``at, mean`` with bars from ``low`` to ``high``, joined by lines.

    ``quantity`` is the title of ``mean`` in the tooltip.
    """
    lines = [line(table, x, y, styles)] if joined else []
    tooltip = {"line": "line", "gpus": "workers", "mean": quantity}
    return [*error_bars(table, x, y, styles), *lines, points(table, x, y, styles, tooltip)]


def reference_line(value: float, channel: str = "y") -> Spec:
    table = pd.DataFrame({channel: [value]})
    style = {"strokeDash": [4, 4], "color": FAINT, "strokeWidth": 1.2}
    return layer(table, "rule", {channel: field(channel)}, **style)


def panel(
    layers: Iterable[Spec], title: str, width: int | Spec, height: int | Spec, subtitle: str = ""
) -> Spec:
    shown: Spec = {
        "text": title, "anchor": "start", "fontSize": FONT_SIZE, "offset": 7, "color": INK,
        "frame": "group", **({"subtitle": subtitle} if subtitle else {}),
    }  # fmt: skip
    return {"layer": list(layers), "width": width, "height": height, "title": shown}


def figure(panels: Sequence[Spec], columns: int, notes: Sequence[str], width: int) -> Spec:
    characters = max(30, int(min(width, PAGE_WIDTH) / CHARACTER_WIDTH))
    subtitle = wrap(" ".join(filter(None, notes)), characters)
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "title": {
            "text": "", "subtitle": subtitle, "anchor": "start", "offset": 14, "fontSize": 15
        },
        "concat": list(panels), "columns": columns, "spacing": 22, "config": _CONFIG,
        "resolve": {"scale": {"color": "shared", "shape": "shared", "strokeDash": "shared"}},
    }  # fmt: skip


def not_shown(count: int, noun: str) -> str:
    verb = "is" if count == 1 else "are"
    return f"{plural(count, f'more {noun}')} {verb} not shown." if count > 0 else ""


def y_values(table: pd.DataFrame, *others: float | None) -> list[float]:
    columns = [name for name in ("mean", "low", "high") if name in table]
    values: Iterable[float] = table[columns].to_numpy(float).ravel()
    return [*values, *(value for value in others if value is not None)]


def counts_axis(counts: Iterable[float], title: str = WORKERS) -> Spec:
    ticks = sorted({round(count) for count in counts})
    domain = [ticks[0] / MARGIN, ticks[-1] * MARGIN]
    scale = {"type": "log", "base": 2, "domain": domain, "nice": False}
    axis = {
        "values": ticks, "format": "d", "labelOverlap": "greedy", "labelSeparation": CHARACTER_WIDTH
    }  # fmt: skip
    return field("at", title=title, scale=scale, axis=axis)


def x_axis(
    column: str, title: str, values: Iterable[float], *, log: bool = False, zero: bool = False
) -> Spec:
    finite = [float(value) for value in values if math.isfinite(value) and (value > 0 or not log)]
    low, high = min(finite, default=float(log)), max(finite, default=1.0)
    if log:
        margin = max((high / low) ** 0.07, 1.06)
        domain = [_round(low / margin), _round(high * margin)]
        scale: Spec = {"type": "log", "domain": domain, "nice": False}
    else:
        if zero:
            low, high = min(0.0, low), max(0.0, high) or float(low == 0)
        size = max(abs(low), abs(high))
        # Values that differ by rounding errors only are one value.
        margin = 0.07 * (high - low) if high - low > 1e-4 * size else 0.1 * size or 1.0
        domain = [
            low if zero and low == 0 else _round(low - margin),
            high if zero and high == 0 else _round(high + margin),
        ]
        scale = {"domain": domain, "nice": False, "zero": False}
    sizes = [abs(end) for end in domain if end]
    if max(sizes) < 1e-3:
        label = ".3~e"
    else:
        label = ",.6~s" if max(sizes) >= 1e5 and min(sizes) >= 1 else ",.6~r"
    axis = {"tickCount": 5, "format": label, "labelOverlap": "greedy", "labelSeparation": 3}
    return field(column, title=title, scale=scale, axis=axis)


def y_axis(
    column: str, title: str, values: Iterable[float], *, log: bool = False, zero: bool = False
) -> Spec:
    axis = x_axis(column, title, values, log=log, zero=zero)
    return axis | {"axis": axis["axis"] | {"tickCount": 7 if log else 6}}


def _round(value: float) -> float:
    return float(np.format_float_positional(value, precision=6, fractional=False))
