"""One look for all figures: readable in grey and by the colour-blind, no fonts from the net."""

from collections.abc import Sequence
from typing import Any

import altair as alt

#: Okabe and Ito's palette without its yellow, which is too light on white.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000"]
SHAPES = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right"]
DASHES = [[1, 0], [6, 3], [2, 2], [8, 2, 2, 2], [10, 4], [4, 2, 1, 2], [1, 3]]
INK, SOFT, FAINT = "#1d2430", "#555555", "#999999"
FONT_SIZE, TITLE_SIZE = 11, 15
#: Width in pixels of a character of this size, on average over words (DejaVu Sans).
CHARACTER = 0.6 * FONT_SIZE
#: A figure is at most so wide, in pixels; a page of the report holds that.
PAGE = 1000
_FONT = "DejaVu Sans, Verdana, Helvetica, Arial, sans-serif"
_CYCLE = len(COLOURS)


def styled(
    panels: Sequence[Any], columns: int, title: str, subtitle: Sequence[str] = ()
) -> alt.ConcatChart:
    """Return panels as one picture with the house's look, a title and lines of words below it.

    It is made in one call: each method of a chart would copy all of it.
    """
    words = alt.TitleParams(
        title, subtitle=list(subtitle), anchor="start", offset=14, fontSize=TITLE_SIZE
    )
    scales = alt.ScaleResolveMap(color="shared", shape="shared", strokeDash="shared")
    return alt.ConcatChart(
        concat=list(panels), columns=columns, spacing=22, title=words,
        resolve=alt.Resolve(scale=scales), config=_CONFIG,
    )  # fmt: skip


_CONFIG = alt.Config(
    font=_FONT, background="white", padding=12,
    title=alt.TitleConfig(
        fontSize=FONT_SIZE, fontWeight="bold", subtitleFontSize=FONT_SIZE, subtitleColor=SOFT,
        color=INK, subtitlePadding=5,
    ),
    axis=alt.AxisConfig(
        labelFontSize=FONT_SIZE, titleFontSize=FONT_SIZE, titleFontWeight="normal",
        titlePadding=7, gridColor="#e5e5e5", domainColor="#888", tickColor="#888",
        labelLimit=0, titleLimit=0,
    ),
    legend=alt.LegendConfig(
        labelFontSize=FONT_SIZE, titleFontSize=FONT_SIZE, titleFontWeight="normal", labelLimit=0,
        titleLimit=0, symbolSize=80, symbolOpacity=1, columnPadding=18, offset=14,
    ),
    view=alt.ViewConfig(stroke="#d5d5d5"),
)  # fmt: skip


def look(lines: Sequence[str], width: int = PAGE, points: bool = True) -> dict[str, Any]:
    """Return colour, shape and dash by ``line``, with one legend for all three.

    ``width`` is of the picture above the legend: it has as many columns as that holds. Where lines
    have no ``points``, the legend shows their dashes.
    """
    longest = max((len(line) for line in lines), default=1)
    columns = max(1, min(len(lines), int(width // (longest * CHARACTER + 50))))
    marks: dict[str, Any] = (
        {"symbolDash": [1, 0], "symbolStrokeWidth": 0} if points
        else {"symbolType": "stroke", "symbolSize": 500, "symbolStrokeWidth": 2}
    )  # fmt: skip
    legend = alt.Legend(
        title=None, orient="bottom", direction="horizontal", columns=columns, **marks
    )
    shown = None if list(lines) == [""] else legend

    def scale(values: Sequence[Any], turn: bool = False) -> alt.Scale:
        chosen = [values[(i + turn * (i // _CYCLE)) % _CYCLE] for i in range(len(lines))]
        return alt.Scale(domain=list(lines), range=chosen)

    dash_legend = None if points else shown
    return {
        "color": alt.Color("line:N", scale=scale(COLOURS), legend=shown),
        "shape": alt.Shape("line:N", scale=scale(SHAPES, turn=True), legend=shown),
        "strokeDash": alt.StrokeDash("line:N", scale=scale(DASHES, turn=True), legend=dash_legend),
    }
