"""Panels and lines of a figure: no more than a reader can distinguish, with names that differ."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from wattlaw.analysis.laws.limit_effects import LIMITS
from wattlaw.analysis.metrics.groups import JSON_COLUMNS, differing_options, group_numbers
from wattlaw.common.formatting import known, plural, replace_invisible
from wattlaw.common.text import collapse_whitespace
from wattlaw.report import charts
from wattlaw.report.charts import Spec
from wattlaw.study.labels import limit_label, setting_label

#: Settings that make panels if a single one cannot contain all lines.
PANEL_COLUMNS = ("workload", "options", "train", "hardware", "launcher", "unit")
#: Settings that make the lines of a panel.
LINE_COLUMNS = (
    "rule", "batch", "precision", *LIMITS, "power_profile", "dataset_fraction",
    "fraction_per_gpu", "threads_per_worker", "run_length", "placement", "layout",
)  # fmt: skip
#: Lines of a single panel, lines of each of several panels, and panels.
MAX_LINES, MAX_LINES_EACH, MAX_PANELS = 7, 5, 9
PUBLISHED_COUNTS = (2, 128)
#: Characters of a name in a legend or in the title of a panel.
MAX_LENGTH = 44
_SIZES = {1: (540, 320, 1), 2: (390, 260, 2), 4: (390, 220, 2)}
#: Width of panels side by side, height of a single row, and of one of several rows.
_ROW_WIDTH, _ROW_HEIGHT, _ROWS_HEIGHT = 400, 260, 200


@dataclass(frozen=True)
class Facets:
    rows: pd.DataFrame
    panels: tuple[str, ...]
    lines: tuple[str, ...]
    omitted: str

    @property
    def size(self) -> tuple[int, int, int]:
        return panel_size(len(self.panels))

    @property
    def styles(self) -> dict[str, Spec]:
        width, _, columns = self.size
        return charts.line_styles(self.lines, min(charts.PAGE_WIDTH, columns * (width + 70)))

    def panel_rows(self, panel: str, table: pd.DataFrame | None = None) -> pd.DataFrame:
        table = self.rows if table is None else table
        return table[table["panel"] == panel]

    def in_unit(self, title: str, table: pd.DataFrame) -> str:
        return title.format(unit=unit_name(self.rows[self.rows["panel"].isin(table["panel"])]))

    def draw(
        self,
        table: pd.DataFrame,
        layers: Callable[[pd.DataFrame], Iterable[Spec]],
        notes: Sequence[str],
        size: tuple[int, int, int] | None = None,
    ) -> Spec:
        width, height, columns = size or self.size
        panels = [
            charts.panel(layers(rows), name, width, height)
            for name in self.panels
            if len(rows := self.panel_rows(name, table))
        ]
        return charts.figure(panels, columns, [*notes, self.omitted], columns * (width + 70))


def unit_name(rows: pd.DataFrame) -> str:
    """Return the unit of work of rows, such as ``epoch``; ``unit`` where they have several."""
    names = set(rows["unit"].dropna()) if "unit" in rows else set()
    return str(*names) if len(names) == 1 else "unit"


def compared_counts(counts: Iterable[int]) -> tuple[int, int]:
    """2 and 128, as the figures of Frey et al. 2022, or else the smallest and the largest."""
    distinct = {int(count) for count in counts}
    return PUBLISHED_COUNTS if distinct >= {*PUBLISHED_COUNTS} else (min(distinct), max(distinct))


def panel_size(panels: int) -> tuple[int, int, int]:
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
    With ``one_panel``, there is a single one if it can contain all lines, and all have the same
    unit. Of too many lines, those with the most worker counts are kept."""
    panel_by = [name for name in panel_by if name in rows]
    line_by = [name for name in line_by if name in rows]
    columns = [*panel_by, *line_by]
    # A series is a row for each combination of settings.
    codes = group_numbers(rows, columns)
    series = rows[columns].assign(code=codes).drop_duplicates("code").set_index("code")
    series = series.assign(counts=rows.groupby(codes)["gpus"].nunique())
    one_unit = "unit" not in rows or rows["unit"].nunique() < 2
    if len(series) <= most and one_panel and one_unit:
        panel_by, line_by = [], columns
    else:
        most = min(most, MAX_LINES_EACH)
    panel = row_labels(
        series, [each for each in panel_by if series[each].nunique(dropna=False) > 1]
    )
    panel_names = unique_labels([*dict.fromkeys(panel)][:MAX_PANELS])
    hidden_panels = panel.nunique() - len(panel_names)
    inside = _differing_inside(series, panel, line_by)
    series = series.assign(panel=panel, line=row_labels(series, inside))
    if inside:
        series = series.sort_values(inside, kind="stable", key=_sort_key, na_position="first")
    series = series[series["panel"].isin(panel_names)]
    # At most so many lines in a panel, and twice that in total: the longest ones.
    lines = series.groupby(["panel", "line"], sort=False)["counts"].max().reset_index()
    longest = lines.sort_values("counts", ascending=False, kind="stable")
    first = longest[longest.groupby("panel").cumcount() < most]["line"].unique()[: 2 * most]
    is_kept = lines["line"].isin(first)
    line_names = unique_labels(lines.loc[is_kept, "line"])
    rows = rows.assign(
        panel=codes.map(series["panel"].map(panel_names)),
        line=codes.map(series["line"].map(line_names)),
    )
    more = ((hidden_panels, "more panel"), (int((~is_kept).sum()), "more line"))
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


def _differing_inside(series: pd.DataFrame, panel: pd.Series, columns: list[str]) -> list[str]:
    """Return the columns that differ inside a panel; ``rule`` and ``batch`` go together."""
    varying = [name for name in columns if series[name].nunique(dropna=False) > 1]
    differing = {
        name for name in varying if (series.groupby(panel)[name].nunique(dropna=False) > 1).any()
    }
    if differing & {"rule", "batch"}:
        differing |= {"rule", "batch"}
    return [name for name in columns if name in differing]


def fixed_dataset(series: pd.DataFrame) -> pd.DataFrame:
    return series[series["fraction_per_gpu"].isna()]


def mean_and_sd(rows: pd.DataFrame, column: str, factor: float = 1.0) -> pd.DataFrame:
    values = (rows[column] * factor).dropna()
    grouped = values.groupby([rows[name] for name in ("panel", "line", "gpus")], sort=False)
    table = pd.DataFrame({"mean": grouped.mean(), "sd": grouped.std(ddof=1)}).reset_index()
    return table.assign(low=table["mean"] - table["sd"], high=table["mean"] + table["sd"])


def dodge(table: pd.DataFrame, lines: Sequence[str], width: int) -> pd.DataFrame:
    """Add ``at``: the worker count moved by a few pixels, so that no line hides another."""
    if table.empty:
        return table.assign(at=table["gpus"])
    pixel = np.log(table["gpus"].max() / table["gpus"].min() * charts.MARGIN**2) / width
    step = min(4.0, 22.0 / max(1, len(lines))) * pixel
    shift = {name: (i - (len(lines) - 1) / 2) * step for i, name in enumerate(lines)}
    return table.assign(at=table["gpus"] * np.exp(table["line"].map(shift).astype(float)))


@dataclass(frozen=True)
class Quantity:
    """A quantity on an axis; ``{unit}`` in its title becomes the unit of work of the panel."""

    column: str
    title: str
    factor: float = 1.0
    log: bool = False


def against_workers(facets: Facets, quantities: Sequence[Quantity], notes: Sequence[str]) -> Spec:
    width, height, columns = facets.size
    if len(quantities) > 1:
        height = _ROW_HEIGHT if len(facets.panels) == 1 else _ROWS_HEIGHT
        width, columns = _ROW_WIDTH, len(quantities)
    styles = charts.line_styles(facets.lines, min(columns * (width + 70), charts.PAGE_WIDTH))
    panels = []
    for name in facets.panels:
        rows = facets.panel_rows(name)
        for quantity in quantities:
            table = mean_and_sd(rows, quantity.column, quantity.factor)
            if table.empty:
                continue
            table, title = dodge(table, facets.lines, width), facets.in_unit(quantity.title, rows)
            values = charts.y_values(table)
            y = charts.y_axis("mean", title, values, log=quantity.log, zero=True)
            layers = charts.curve(table, charts.counts_axis(table["gpus"]), y, styles, title)
            panels.append(charts.panel(layers, name, width, height))
    return charts.figure(panels, columns, [*notes, facets.omitted], columns * (width + 70))


def shorten_middle(text: str, most: int = MAX_LENGTH) -> str:
    text = collapse_whitespace(replace_invisible(text))
    if len(text) <= most:
        return text
    end = (most - 1) // 3
    return f"{text[: most - 1 - end]}\u2026{text[-end:]}"


def unique_labels(names: Iterable[str], most: int = MAX_LENGTH) -> dict[str, str]:
    labels: dict[str, str] = {}
    for name in dict.fromkeys(names):
        label, i = shorten_middle(name, most), 1
        while label in labels.values():
            i += 1
            label = shorten_middle(name, most - 5) + f" ({i})"
        labels[name] = label
    return labels


def row_labels(rows: pd.DataFrame, columns: Sequence[str]) -> pd.Series:
    shown = rows[list(columns)]
    for name in {*JSON_COLUMNS} & {*columns}:
        shown = shown.assign(**{name: shown[name].map(differing_options(shown[name]))})

    def label(row: dict[Any, Any], name: str) -> str:
        value, rule = row[name], row.get("rule")
        if name == "rule" or (name == "batch" and rule not in ("global_batch", "local_batch")):
            return ""
        if name in LIMITS:
            return limit_label(name, value)
        if name == "fraction_per_gpu":
            return "data grows with N" if known(value) else ""
        return setting_label(str(rule) if name == "batch" else name, value)

    labels = [
        ", ".join(filter(None, (label(row, name) for name in columns)))
        for row in shown.to_dict("records")
    ]
    return pd.Series(labels, index=rows.index, dtype=object)
