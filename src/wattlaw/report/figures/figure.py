"""A figure of the gallery."""

from collections.abc import Callable
from dataclasses import dataclass

import altair as alt

from wattlaw.analysis.findings import Findings


@dataclass(frozen=True)
class Figure:
    """A chart with the text around it.

    ``draw`` returns None if the findings have no data for it. ``studies`` are those that show
    this figure; ``caption`` explains it, as plain text.
    """

    name: str
    title: str
    section: str
    studies: frozenset[str]
    draw: Callable[[Findings], alt.ConcatChart | None]
    caption: str

    def chart(self, findings: Findings) -> alt.ConcatChart | None:
        """Return the chart with its title."""
        chart = self.draw(findings)
        if chart is not None:
            chart["title"]["text"] = self.title
        return chart
