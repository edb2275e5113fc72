"""The style of all figures: readable in grey and with colour blindness, with local fonts only."""

from collections.abc import Sequence
from typing import Any

import altair as alt
from altair.utils.schemapi import debug_mode

#: Okabe and Ito's palette without its yellow, which is too light on white.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000"]
SHAPES = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right"]
DASHES = [[1, 0], [6, 3], [2, 2], [8, 2, 2, 2], [10, 4], [4, 2, 1, 2], [1, 3]]
INK, SUBTITLE_COLOUR, FAINT = "#1d2430", "#555555", "#999999"
FONT_SIZE, TITLE_SIZE = 11, 15
#: Mean width in pixels of a character of this size (DejaVu Sans).
CHARACTER_WIDTH = 0.6 * FONT_SIZE
#: A count axis extends beyond its first and last count by this factor.
MARGIN = 1.25
#: Largest width of a figure in pixels; it fits into the report's page.
PAGE_WIDTH = 1000
_FONT = "DejaVu Sans, Verdana, Helvetica, Arial, sans-serif"
_CYCLE = len(COLOURS)


#: A chart, or a part of one, in Vega-Lite.
Spec = dict[str, Any]


def themed(panels: Sequence[Any], columns: int, subtitle: Sequence[str]) -> Spec:
    """Return panels as one chart in this style, with lines of text below an empty title.

    Altair's classes of schemas construct it: those of charts copy all that they contain.
    """
    title = alt.TitleParams(
        "", subtitle=list(subtitle), anchor="start", offset=14, fontSize=TITLE_SIZE
    )
    scales = alt.ScaleResolveMap(color="shared", shape="shared", strokeDash="shared")
    with debug_mode(False):
        chart = alt.TopLevelConcatSpec(
            concat=list(panels), columns=columns, spacing=22, title=title,
            resolve=alt.Resolve(scale=scales), config=_CONFIG,
        )  # fmt: skip
    datasets: Spec = {}
    context = {"datasets": datasets, "top_level": False}
    spec: Spec = chart.to_dict(validate=False, context=context)
    return {"$schema": alt.SCHEMA_URL, **spec, "datasets": datasets}


_CONFIG = alt.Config(
    font=_FONT, background="white", padding=12,
    title=alt.TitleConfig(
        fontSize=FONT_SIZE, fontWeight="bold", subtitleFontSize=FONT_SIZE,
        subtitleColor=SUBTITLE_COLOUR, color=INK, subtitlePadding=5,
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


def line_styles(
    lines: Sequence[str], width: int = PAGE_WIDTH, *, points: bool = True
) -> dict[str, Any]:
    """Return colour, shape and dash by ``line``, with one legend for all three.

    The legend has as many columns as fit into ``width``. Without ``points``, it shows the dashes.
    """
    longest = max((len(line) for line in lines), default=1)
    columns = max(1, min(len(lines), int(width // (longest * CHARACTER_WIDTH + 50))))
    symbols: dict[str, Any] = (
        {"symbolDash": [1, 0], "symbolStrokeWidth": 0} if points
        else {"symbolType": "stroke", "symbolSize": 500, "symbolStrokeWidth": 2}
    )  # fmt: skip
    legend = alt.Legend(
        title=None, orient="bottom", direction="horizontal", columns=columns, **symbols
    )
    optional_legend = None if list(lines) == [""] else legend

    def scale(values: Sequence[Any], *, shifted: bool = False) -> alt.Scale:
        """Repeat the values; a shift in each round makes the combinations differ."""
        indices = (i + shifted * (i // _CYCLE) for i in range(len(lines)))
        return alt.Scale(domain=list(lines), range=[values[i % _CYCLE] for i in indices])

    return {
        "color": alt.Color("line:N", scale=scale(COLOURS), legend=optional_legend),
        "shape": alt.Shape("line:N", scale=scale(SHAPES, shifted=True), legend=optional_legend),
        "strokeDash": alt.StrokeDash(
            "line:N", scale=scale(DASHES, shifted=True), legend=None if points else optional_legend
        ),
    }
