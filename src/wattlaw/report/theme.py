"""One look for all figures: readable in grey and by the colour-blind, no fonts from the net."""

from typing import Any

import altair as alt

#: Okabe and Ito's palette without its yellow, which is too light on white.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000"]
SHAPES = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right"]
WIDTH, HEIGHT = 520, 340
_FONT = "DejaVu Sans, Verdana, Helvetica, Arial, sans-serif"


def styled(chart: Any, title: str, subtitle: str = "") -> alt.LayerChart:
    """Return a layered chart with the house's look and a title."""
    words = alt.TitleParams(title, subtitle=subtitle, anchor="start", offset=12)
    layered: alt.LayerChart = (
        chart.properties(width=WIDTH, height=HEIGHT, title=words)
        .configure(font=_FONT, background="white", padding=12)
        .configure_title(fontSize=15, subtitleFontSize=12, subtitleColor="#555")
        .configure_axis(
            labelFontSize=12, titleFontSize=12, titleFontWeight="normal", titlePadding=8,
            gridColor="#e5e5e5", domainColor="#888", tickColor="#888",
        )
        .configure_legend(labelFontSize=12, titleFontSize=12, labelLimit=280, symbolSize=90)
        .configure_view(stroke=None)
    )  # fmt: skip
    return layered


def workers_axis(counts: list[int]) -> alt.X:
    """Return a logarithmic axis with ticks at the worker counts that were measured."""
    low, high = min(counts), max(counts)
    return alt.X(
        "at:Q",
        title="workers (GPUs, or CPU processes where there is no GPU)",
        scale=alt.Scale(type="log", base=2, domain=[low / 1.12, high * 1.12], nice=False),
        axis=alt.Axis(values=counts, format="d", labelOverlap=True),
    )


def by_series(names: list[str]) -> dict[str, Any]:
    """Return colour and shape by series, with one legend for both."""
    legend = alt.Legend(title="series", orient="bottom", columns=2, symbolOpacity=1)
    colours = alt.Scale(domain=names, range=[COLOURS[i % 7] for i in range(len(names))])
    shapes = alt.Scale(domain=names, range=[SHAPES[(i + i // 7) % 7] for i in range(len(names))])
    return {
        "color": alt.Color("series:N", scale=colours, legend=legend),
        "shape": alt.Shape("series:N", scale=shapes, legend=legend),
    }
