"""Small labels next to points, placed where they overlap nothing, or left out."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal

import altair as alt
import numpy as np
import pandas as pd

from wattlaw.report.figures.parts import column_of, compact
from wattlaw.report.theme import FONT_SIZE, INK

Box = tuple[float, float, float, float]  # left, top, right, bottom; in pixels
_SIZE = FONT_SIZE - 1
_LINE_STEP = 4.0  # pixels between the boxes that cover a line
#: Alignment of a label, and its distance from the point in pixels, by preference.
_POSITIONS: tuple[tuple[Literal["left", "center", "right"], int, int], ...] = (
    ("center", 0, -13), ("left", 7, -8), ("right", -7, -8), ("left", 7, 9), ("right", -7, 9),
    ("center", 0, 14),
)  # fmt: skip
_LEFT_SHARE = {"left": 0.0, "center": 0.5, "right": 1.0}  # of the label's width


def point_labels(
    table: pd.DataFrame,
    x: alt.X,
    y: alt.Y,
    size: tuple[int, int],
    column: str,
    bars: tuple[str, ...] = (),
    order: Sequence[int] | None = None,
) -> list[alt.Chart]:
    """Return labels, the texts of ``column``, next to points where there is space.

    Vega-Lite does not avoid overlaps of text marks. ``table`` has the points in the order in which
    each ``line`` joins them, ``size`` is width and height of the panel in pixels, and ``bars`` are
    columns with the ends of vertical bars. Points of ``order``, by default all, get a label, the
    first ones with preference.
    """
    width, height = size
    pixels = pd.DataFrame({"x": _pixels(x, table[column_of(x)], width)})
    pixels["line"] = table["line"].to_numpy()
    for name in (column_of(y), *bars):
        pixels[name] = height - _pixels(y, table[name], height)
    pixels = pixels.rename(columns={column_of(y): "y"})
    taken = list(_occupied(pixels, bars))
    labels = [str(value) for value in table[column]]
    placed: list[list[int]] = [[] for _ in _POSITIONS]
    for i in range(len(labels)) if order is None else order:
        label_width = len(labels[i]) * 0.62 * _SIZE
        for rows, (align, dx, dy) in zip(placed, _POSITIONS, strict=True):
            left = float(pixels["x"].iloc[i]) + dx - label_width * _LEFT_SHARE[align]
            middle = float(pixels["y"].iloc[i]) + dy
            box = (left, middle - 6, left + label_width, middle + 6)
            inside = box[0] > 0 and box[2] < width and box[1] > 0 and box[3] < height
            if inside and not any(_overlap(box, other) for other in taken):
                taken.append(box)
                rows.append(i)
                break
    return [
        alt.Chart(compact(table.iloc[rows], column_of(x), column_of(y), column))
        .mark_text(align=align, dx=dx, dy=dy, fontSize=_SIZE, color=INK)
        .encode(x=x, y=y, text=f"{column}:N")
        for rows, (align, dx, dy) in zip(placed, _POSITIONS, strict=True)
        if rows
    ]


def _occupied(pixels: pd.DataFrame, bars: tuple[str, ...]) -> Iterator[Box]:
    """Yield the boxes that points, bars and lines cover."""
    for a, b in pixels[["x", "y"]].to_numpy(float):
        yield (a - 5, b - 5, a + 5, b + 5)
    if bars:
        for a, *ends in pixels[["x", *bars]].dropna().to_numpy(float):
            yield (a - 1, min(ends), a + 1, max(ends))
    for _, line in pixels.groupby("line", sort=False):
        for start, end in pairwise(line[["x", "y"]].to_numpy(float)):
            steps = max(2, int(np.hypot(*(end - start)) / _LINE_STEP))
            for a, b in np.linspace(start, end, steps):
                yield (a - 1, b - 1, a + 1, b + 1)


def _overlap(box: Box, other: Box) -> bool:
    return box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3]


def _pixels(channel: alt.X | alt.Y, values: pd.Series, size: int) -> "np.ndarray[Any, Any]":
    """Return the position of each value along its axis."""
    spec: Any = channel.to_dict()
    scale = spec["scale"]
    low, high = np.array(scale["domain"], dtype=float)
    positions: np.ndarray[Any, Any] = values.to_numpy(float)
    if scale.get("type") == "log":
        low, high, positions = np.log(low), np.log(high), np.log(positions)
    shares: np.ndarray[Any, Any] = (positions - low) / (high - low)
    return size * shares
