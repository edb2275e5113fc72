"""What a figure is."""

from collections.abc import Callable
from dataclasses import dataclass

import altair as alt

from wattlaw.analysis.findings import Findings

MIT, KIT = "mit-2022", "kit-2025"
BOTH = frozenset({MIT, KIT})


@dataclass(frozen=True)
class Figure:
    """A picture of the gallery.

    ``make`` returns None where the findings have nothing to show. ``studies`` are those whose
    pictures it is among; ``caption`` says how to read it, as plain text.
    """

    name: str
    title: str
    section: str
    studies: frozenset[str]
    make: Callable[[Findings], alt.ConcatChart | None]
    caption: str
