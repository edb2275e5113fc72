"""Small labels beside points, put where they touch neither points nor lines, or left out."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal

import altair as alt
import numpy as np
import pandas as pd

from wattlaw.report.figures.parts import compact
from wattlaw.report.theme import FONT_SIZE, INK

Box = tuple[float, float, float, float]  # left, top, right, bottom; in pixels
_SIZE = FONT_SIZE - 1
_STEP = 4.0  # pixels between places of a line that are kept free
#: Where a label may be: how it is aligned, and how far it is from the point in pixels.
_PLACES: tuple[tuple[Literal["left", "center", "right"], int, int], ...] = (
    ("center", 0, -13), ("left", 7, -8), ("right", -7, -8), ("left", 7, 9), ("right", -7, 9),
    ("center", 0, 14),
)  # fmt: skip
_BEFORE = {"left": 0.0, "center": 0.5, "right": 1.0}  # share of the label left of its anchor


def numbered(
    table: pd.DataFrame,
    x: alt.X,
    y: alt.Y,
    size: tuple[int, int],
    columns: tuple[str, str, str],
    bars: tuple[str, ...] = (),
    order: Sequence[int] | None = None,
) -> list[alt.Chart]:
    """Return labels beside points where there is room.

    Parameters
    ----------
    table
        Points, in the order in which each ``line`` joins them.
    x, y, size
        The axes, and how wide and high the panel is in pixels.
    columns
        Across, up, and what the label says.
    bars
        Columns with the ends of upright bars.
    order
        Positions of the points that get a label, the most important first; by default all.
    """
    along, up, label = columns
    width, height = size
    place = pd.DataFrame({"x": _pixels(x, table[along], width), "line": table["line"].to_numpy()})
    place["y"] = height - _pixels(y, table[up], height)
    for name in bars:
        place[name] = height - _pixels(y, table[name], height)
    taken = list(_ink(place, bars))
    words = [str(value) for value in table[label]]
    put: list[list[int]] = [[] for _ in _PLACES]
    for i in range(len(words)) if order is None else order:
        wide = len(words[i]) * 0.62 * _SIZE
        for rows, (align, dx, dy) in zip(put, _PLACES, strict=True):
            left = float(place["x"].iloc[i]) + dx - wide * _BEFORE[align]
            middle = float(place["y"].iloc[i]) + dy
            box = (left, middle - 6, left + wide, middle + 6)
            inside = box[0] > 0 and box[2] < width and box[1] > 0 and box[3] < height
            if inside and not any(_touch(box, other) for other in taken):
                taken.append(box)
                rows.append(i)
                break
    return [
        alt.Chart(compact(table.iloc[rows], along, up, label))
        .mark_text(align=align, dx=dx, dy=dy, fontSize=_SIZE, color=INK)
        .encode(x=x, y=y, text=f"{label}:N")
        for rows, (align, dx, dy) in zip(put, _PLACES, strict=True)
        if rows
    ]


def _ink(place: pd.DataFrame, bars: tuple[str, ...]) -> Iterator[Box]:
    """Yield what points, bars and lines cover."""
    for a, b in place[["x", "y"]].to_numpy(float):
        yield (a - 5, b - 5, a + 5, b + 5)
    if bars:
        for a, *ends in place[["x", *bars]].dropna().to_numpy(float):
            yield (a - 1, min(ends), a + 1, max(ends))
    for _, line in place.groupby("line", sort=False):
        spots = line[["x", "y"]].to_numpy(float)
        for start, end in pairwise(spots):
            steps = max(2, int(np.hypot(*(end - start)) / _STEP))
            for a, b in np.linspace(start, end, steps):
                yield (a - 1, b - 1, a + 1, b + 1)


def _touch(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _pixels(channel: alt.X | alt.Y, values: pd.Series, size: int) -> "np.ndarray[Any, Any]":
    """Return how far along its axis each value is."""
    spec: Any = channel.to_dict()
    ends = np.array(spec["scale"]["domain"], dtype=float)
    there = values.to_numpy(float)
    if spec["scale"].get("type") == "log":
        ends, there = np.log(ends), np.log(there)
    found: np.ndarray[Any, Any] = size * (there - ends[0]) / (ends[1] - ends[0])
    return found
