"""Panels and lines of a figure: no more than a reader can distinguish."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from wattlaw.analysis.laws.limit_effects import LIMITS
from wattlaw.common.formatting import plural
from wattlaw.report.figures.labels import row_labels, unique_labels
from wattlaw.report.theme import MARGIN, PAGE_WIDTH, line_styles
from wattlaw.report.topics.measured import unit_name

#: Settings that make panels if a single one cannot contain all lines.
PANEL_COLUMNS = ("workload", "options", "train", "hardware", "launcher", "unit")
#: Settings that make the lines of a panel.
LINE_COLUMNS = (
    "rule", "batch", "precision", *LIMITS, "power_profile", "dataset_fraction",
    "fraction_per_gpu", "threads_per_worker", "run_length", "placement",
)  # fmt: skip
#: Lines of a single panel, lines of each of several panels, and panels.
MAX_LINES, MAX_LINES_EACH, MAX_PANELS = 7, 5, 9
PUBLISHED_COUNTS = (2, 128)
_SIZES = {1: (540, 320, 1), 2: (390, 260, 2), 3: (255, 210, 3), 4: (390, 220, 2)}


@dataclass(frozen=True)
class Facets:
    """Rows with the columns ``panel`` and ``line``, and a note on what is not shown."""

    rows: pd.DataFrame
    panels: tuple[str, ...]
    lines: tuple[str, ...]
    omitted: str

    @property
    def size(self) -> tuple[int, int, int]:
        """Width and height of a panel in pixels, and the number of columns."""
        return panel_size(len(self.panels))

    @property
    def width(self) -> int:
        """Width of all columns together."""
        width, _, columns = self.size
        return min(PAGE_WIDTH, columns * (width + 70))

    @property
    def styles(self) -> dict[str, Any]:
        """Colours, shapes and dashes of the lines."""
        return line_styles(self.lines, self.width)

    def panel_rows(self, panel: str, table: pd.DataFrame | None = None) -> pd.DataFrame:
        """Return the rows of a panel."""
        table = self.rows if table is None else table
        return table[table["panel"] == panel]

    def in_unit(self, title: str, table: pd.DataFrame) -> str:
        """Return a title with the unit of work of the panels of ``table`` for ``{unit}``."""
        rows = self.rows[self.rows["panel"].isin(table["panel"])] if "{unit}" in title else None
        return title if rows is None else title.format(unit=unit_name(rows))


def compared_counts(counts: Iterable[int]) -> tuple[int, int]:
    """Return the two worker counts that a figure compares.

    2 and 128, as the figures of Frey et al. 2022, or else the smallest and the largest.
    """
    distinct = {int(count) for count in counts}
    return PUBLISHED_COUNTS if distinct >= {*PUBLISHED_COUNTS} else (min(distinct), max(distinct))


def panel_size(panels: int) -> tuple[int, int, int]:
    """Return width, height and number of columns for so many panels."""
    return _SIZES.get(panels, (255, 210, 3))


def facet(
    rows: pd.DataFrame,
    panel_by: Sequence[str] = PANEL_COLUMNS,
    line_by: Sequence[str] = LINE_COLUMNS,
    *,
    one_panel: bool = True,
    most: int = MAX_LINES,
) -> Facets:
    """Split rows into panels by the settings of ``panel_by`` that differ, and lines by the rest.

    With ``one_panel``, there is a single panel if it can contain all lines, and all have the same
    unit. Of too many lines, those with the most worker counts are kept.
    """
    panel_by = [name for name in panel_by if name in rows]
    line_by = [name for name in line_by if name in rows]
    columns = [*panel_by, *line_by]
    codes = rows.groupby(columns, dropna=False, sort=False).ngroup()
    series = rows[columns].assign(code=codes).drop_duplicates("code").set_index("code")
    series = series.assign(counts=rows.groupby(codes)["gpus"].nunique())
    one_unit = "unit" not in rows or rows["unit"].nunique() < 2
    if len(series) <= most and one_panel and one_unit:
        panel_by, line_by = [], columns
    else:
        most = min(most, MAX_LINES_EACH)
    differing = [name for name in panel_by if series[name].nunique(dropna=False) > 1]
    panel = row_labels(series, differing)
    inside = _differing_inside(series, panel, line_by)
    series = series.assign(panel=panel, line=row_labels(series, inside))
    if inside:
        series = series.sort_values(inside, kind="stable", key=_sort_key, na_position="first")
    panels = list(dict.fromkeys(panel))
    series = series[series["panel"].isin(panels[:MAX_PANELS])]
    kept, hidden = _longest_lines(series, most)
    panel_names, line_names = unique_labels(panels[:MAX_PANELS]), unique_labels(kept)
    series = series[series["line"].isin(kept)]
    rows = rows.assign(
        panel=codes.map(series["panel"].map(panel_names)),
        line=codes.map(series["line"].map(line_names)),
    )
    more = ((len(panels[MAX_PANELS:]), "more panel"), (hidden, "more line"))
    omitted = [plural(count, noun) for count, noun in more if count]
    return Facets(
        rows.dropna(subset=["panel", "line"]),
        tuple(panel_names.values()),
        tuple(line_names.values()),
        f"Not shown: {' and '.join(omitted)}." if omitted else "",
    )


def _sort_key(column: pd.Series) -> pd.Series:
    if column.name in LIMITS:
        return -column
    return column if pd.api.types.is_numeric_dtype(column) else column.astype("string")


def _longest_lines(series: pd.DataFrame, most: int) -> tuple[list[str], int]:
    """Return the lines to draw, at most so many in a panel and twice that in total."""
    lines = series.groupby(["panel", "line"], sort=False)["counts"].max().reset_index()
    longest = lines.sort_values("counts", ascending=False, kind="stable")
    first = longest[longest.groupby("panel").cumcount() < most]["line"]
    kept = set(list(dict.fromkeys(first))[: 2 * most])
    shown = [name for name in dict.fromkeys(lines["line"]) if name in kept]
    return shown, int((~lines["line"].isin(kept)).sum())


def _differing_inside(series: pd.DataFrame, panel: pd.Series, columns: list[str]) -> list[str]:
    """Return the columns that differ inside a panel; ``rule`` and ``batch`` go together."""
    if series.empty:
        return []
    counts = {name: series.groupby(panel)[name].nunique(dropna=False).max() for name in columns}
    batch = any(counts.get(name, 0) > 1 for name in ("rule", "batch"))
    return [name for name in columns if counts[name] > 1 or (batch and name in ("rule", "batch"))]


def without_limits(series: pd.DataFrame) -> pd.DataFrame:
    """Return the rows without cap and clock; of families that have none, those of the highest."""
    rows = series
    for limit in LIMITS:
        missing = rows[limit].isna()
        has_missing = missing.groupby(rows["family"]).transform("any")
        highest = rows.groupby("family")[limit].transform("max")
        rows = rows[missing | (~has_missing & (rows[limit] == highest))]
    return rows


def fixed_dataset(series: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of series whose data set does not grow with the workers."""
    return series[series["fraction_per_gpu"].isna()]


def mean_and_sd(rows: pd.DataFrame, column: str, factor: float = 1.0) -> pd.DataFrame:
    """Return mean, and mean -+ standard deviation over repeats, by panel, line and workers."""
    values = (rows[column] * factor).dropna()
    grouped = values.groupby([rows[name] for name in ("panel", "line", "gpus")], sort=False)
    table = pd.DataFrame({"mean": grouped.mean(), "sd": grouped.std(ddof=1)}).reset_index()
    return table.assign(low=table["mean"] - table["sd"], high=table["mean"] + table["sd"])


def dodge(table: pd.DataFrame, lines: Sequence[str], width: int) -> pd.DataFrame:
    """Add ``at``: the worker count moved by a few pixels, so that no line hides another."""
    if table.empty:
        return table.assign(at=table["gpus"])
    pixel = np.log(table["gpus"].max() / table["gpus"].min() * MARGIN**2) / width
    step = min(4.0, 22.0 / max(1, len(lines))) * pixel
    shift = {name: (i - (len(lines) - 1) / 2) * step for i, name in enumerate(lines)}
    return table.assign(at=table["gpus"] * np.exp(table["line"].map(shift).astype(float)))
