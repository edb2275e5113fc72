"""Which runs a figure shows: panels of lines, no more than can be told apart."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from wattlaw.analysis.caps.limits import LIMITS
from wattlaw.report.figures.axes import MARGIN
from wattlaw.report.figures.labels import labels, short_all
from wattlaw.report.theme import PAGE

#: What tells panels apart where one cannot hold all lines.
JOB = ("workload", "options", "train", "hardware", "launcher")
#: What tells the lines of a panel apart.
KIND = (
    "rule", "batch", "precision", *LIMITS, "dataset_fraction", "fraction_per_gpu",
    "threads_per_worker",
)  # fmt: skip
#: Lines in a figure of one panel, in each of several panels, and panels.
MOST_LINES, MOST_EACH, MOST_PANELS = 7, 5, 9
_SIZES = {1: (540, 320, 1), 2: (390, 260, 2), 3: (255, 210, 3), 4: (390, 220, 2)}


@dataclass(frozen=True)
class Arranged:
    """Rows with the columns ``panel`` and ``line``, and what did not fit, in words."""

    rows: pd.DataFrame
    panels: tuple[str, ...]
    lines: tuple[str, ...]
    left_out: str

    @property
    def size(self) -> tuple[int, int, int]:
        """Return width and height of a panel in pixels, and how many stand side by side."""
        return size_of(len(self.panels))

    @property
    def width(self) -> int:
        """Return the width of all panels side by side."""
        width, _, columns = self.size
        return min(PAGE, columns * (width + 70))

    def of(self, panel: str, frame: pd.DataFrame | None = None) -> pd.DataFrame:
        """Return the rows of a panel."""
        frame = self.rows if frame is None else frame
        return frame[frame["panel"] == panel]


def size_of(panels: int) -> tuple[int, int, int]:
    """Return width, height and columns for so many panels."""
    return _SIZES.get(panels, (255, 210, 3))


def arranged(
    rows: pd.DataFrame,
    panel_by: Sequence[str] = JOB,
    line_by: Sequence[str] = KIND,
    one_panel: bool = True,
    most: int = MOST_LINES,
) -> Arranged:
    """Put rows into panels by what differs of ``panel_by``, and lines by the rest.

    Where ``one_panel`` may hold all lines, it does. Of too many lines those with the most worker
    counts are kept.
    """
    panel_by = [name for name in panel_by if name in rows]
    line_by = [name for name in line_by if name in rows]
    keys = [*panel_by, *line_by]
    kind = rows.groupby(keys, dropna=False, sort=False).ngroup()
    kinds = rows[keys].assign(kind=kind).drop_duplicates("kind").set_index("kind")
    kinds = kinds.assign(counts=rows.groupby(kind)["gpus"].nunique())
    if len(kinds) <= most and one_panel:
        panel_by, line_by = [], keys
    else:
        most = min(most, MOST_EACH)
    apart = [name for name in panel_by if kinds[name].nunique(dropna=False) > 1]
    panel = labels(kinds, apart)
    inside = _differing(kinds, panel, line_by)
    kinds = kinds.assign(panel=panel, line=labels(kinds, inside))
    if inside:
        kinds = kinds.sort_values(inside, kind="stable", key=_order, na_position="first")
    panels = list(dict.fromkeys(panel))
    kinds = kinds[kinds["panel"].isin(panels[:MOST_PANELS])]
    kept, hidden = _kept_lines(kinds, most)
    names, lines = short_all(panels[:MOST_PANELS]), short_all(kept)
    kinds = kinds[kinds["line"].isin(kept)]
    kinds = kinds.assign(panel=kinds["panel"].map(names), line=kinds["line"].map(lines))
    return Arranged(
        rows.assign(panel=kind.map(kinds["panel"]), line=kind.map(kinds["line"])).dropna(
            subset=["panel", "line"]
        ),
        tuple(names.values()),
        tuple(lines.values()),
        _left_out(len(panels[MOST_PANELS:]), hidden),
    )


def _order(column: pd.Series) -> pd.Series:
    if column.name in LIMITS:
        return -column
    return column if pd.api.types.is_numeric_dtype(column) else column.astype("string")


def _kept_lines(kinds: pd.DataFrame, most: int) -> tuple[list[str], int]:
    """Return the lines that are drawn, at most so many in a panel and twice that in all."""
    lines = kinds.groupby(["panel", "line"], sort=False)["counts"].max().reset_index()
    longest = lines.sort_values("counts", ascending=False, kind="stable")
    first = longest[longest.groupby("panel").cumcount() < most]["line"]
    kept = set(list(dict.fromkeys(first))[: 2 * most])
    shown = [name for name in dict.fromkeys(lines["line"]) if name in kept]
    return shown, int((~lines["line"].isin(kept)).sum())


def _differing(kinds: pd.DataFrame, panel: pd.Series, columns: list[str]) -> list[str]:
    """Return the columns that differ inside some panel; ``rule`` and ``batch`` go together."""
    if kinds.empty:
        return []
    found = [name for name in columns if kinds.groupby(panel)[name].nunique(dropna=False).max() > 1]
    together = [name for name in ("rule", "batch") if name in columns]
    if set(found) & {"rule", "batch"}:
        found = [*together, *(name for name in found if name not in together)]
        found.sort(key=columns.index)
    return found


def _left_out(panels: int, lines: int) -> str:
    words = [f"{n} more {noun}{'s' if n > 1 else ''}" for n, noun in
             ((panels, "panel"), (lines, "line")) if n]  # fmt: skip
    return f"not shown: {' and '.join(words)} (see the tables)" if words else ""


def free(series: pd.DataFrame) -> pd.DataFrame:
    """Return the rows without cap and clock; of families that have none, those of the highest."""
    rows = series
    for limit in LIMITS:
        missing = rows[limit].isna()
        has_free = missing.groupby(rows["family"]).transform("any")
        highest = rows.groupby("family")[limit].transform("max")
        rows = rows[missing | (~has_free & (rows[limit] == highest))]
    return rows


def fixed_data(series: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of series whose data set does not grow with the workers."""
    return series[series["fraction_per_gpu"].isna()]


def summarised(rows: pd.DataFrame, column: str, x: str = "gpus") -> pd.DataFrame:
    """Return mean, and mean -+ standard deviation over repeats, by panel, line and ``x``."""
    there = rows[rows[column].notna()]
    grouped = there.groupby(["panel", "line", x], sort=False)[column]
    table = pd.DataFrame({"mean": grouped.mean(), "sd": grouped.std(ddof=1)}).reset_index()
    return table.assign(low=table["mean"] - table["sd"], high=table["mean"] + table["sd"])


def beside(table: pd.DataFrame, lines: Sequence[str], width: int, x: str = "gpus") -> pd.DataFrame:
    """Add ``at``: a count moved by a few pixels, so that no line hides another."""
    if table.empty:
        return table.assign(at=table[x])
    pixel = np.log(table[x].max() / table[x].min() * MARGIN**2) / width
    step = min(4.0, 22.0 / max(1, len(lines))) * pixel
    moved = {name: (i - (len(lines) - 1) / 2) * step for i, name in enumerate(lines)}
    return table.assign(at=table[x] * np.exp(table["line"].map(moved).astype(float)))
