"""Time against workers: laws, speedup, efficiency, residuals, and published exponents."""

import altair as alt
import numpy as np
import pandas as pd

from wattlaw.analysis.findings import Findings
from wattlaw.analysis.laws.limit_effects import Limit, other_limit
from wattlaw.common.formatting import plural
from wattlaw.report.figures import parts
from wattlaw.report.figures.facets import (
    LINE_COLUMNS,
    PANEL_COLUMNS,
    Facets,
    dodge,
    facet,
    fixed_dataset,
    mean_and_sd,
    without_limits,
)
from wattlaw.report.theme import FAINT, Spec
from wattlaw.report.topics.scaling import rows_of_group

#: More runs than this are drawn as their means.
MAX_POINTS = 500
TIME = "time per {unit} (s)"
_NO_LINES = pd.DataFrame(columns=["at", "mean", "low", "high", "panel", "line"])


def epoch_time(findings: Findings) -> Spec | None:
    """Draw the time of a unit against workers, log-log, without caps and clocks, with laws."""
    return _epoch_times(findings, facet(without_limits(fixed_dataset(findings.series))))


def epoch_time_by_limit(findings: Findings, limit: Limit) -> Spec | None:
    """Draw seconds per epoch against workers by cap or clock, a panel per family."""
    return _epoch_times(findings, facets_by_limit(findings.series, limit))


def facets_by_limit(series: pd.DataFrame, limit: Limit) -> Facets:
    """Return series that differ in one limit alone, a panel per family and a line per limit."""
    rows = fixed_dataset(series)
    rows = rows[rows[other_limit(limit)].isna()]
    limits = rows.groupby("family")[limit].transform(lambda values: values.nunique(dropna=False))
    columns = [name for name in LINE_COLUMNS if name != limit]
    return facet(rows[limits > 1], [*PANEL_COLUMNS, *columns], [limit], one_panel=False)


def _epoch_times(findings: Findings, facets: Facets) -> Spec | None:
    if facets.rows.empty:
        return None
    laws = law_lines(findings, facets)
    single = len(facets.rows) <= MAX_POINTS
    if single:
        points = facets.rows[["panel", "line", "gpus"]].assign(mean=facets.rows["time_s"])
        points = points.assign(low=np.nan, high=np.nan)
    else:
        points = mean_and_sd(facets.rows, "time_s")

    def layers(rows: pd.DataFrame) -> list[alt.Chart]:
        lines = facets.panel_rows(rows["panel"].iloc[0], laws)
        title = facets.in_unit(TIME, rows)
        y = parts.y_axis("mean", title, parts.y_values(rows) + parts.y_values(lines), log=True)
        x = parts.counts_axis(rows["gpus"])
        without_law = rows[~rows["line"].isin(lines["line"])]
        means = without_law.groupby(["line", "at"], sort=False)["mean"].mean().reset_index()
        bands = [
            parts.band(lines, x, y, facets.styles, f"{kind}low", f"{kind}high", opacity)
            for kind, opacity in (("prediction_", 0.1), ("", 0.25))
            if len(lines)
        ]
        curves = [parts.line(table, x, y, facets.styles) for table in (lines, means) if len(table)]
        return [*bands, *curves, *parts.curve(rows, x, y, facets.styles, title, joined=False)]

    notes = [
        "Points are runs." if single else parts.SD_BARS,
        "Lines are t = \u03b1 N^\u2212\u03b2 with 95 % bands, lighter for a single run."
        if len(laws)
        else "Lines join means: a law needs three worker counts.",
    ]
    return parts.draw_panels(facets, dodge(points, facets.lines, facets.size[0]), layers, notes)


def speedup(findings: Findings) -> Spec | None:
    """Draw speedup relative to the reference count, with intervals and the ideal line."""
    facets, table = relative_facets(findings)
    if table.empty:
        return None
    table = table.rename(columns={"speedup": "mean", "speedup_low": "low", "speedup_high": "high"})

    def layers(rows: pd.DataFrame) -> list[alt.Chart]:
        ideal = _ideal(rows)
        title = f"speedup (ratio to {reference_label(rows)})"
        y = parts.y_axis("mean", title, [*parts.y_values(rows), *ideal["mean"]], log=True)
        x = parts.counts_axis(rows["gpus"])
        dashed = alt.Chart(ideal).mark_line(strokeDash=[5, 4], color=FAINT)
        dashed = dashed.encode(x=x, y=y, detail="reference:N")
        return [dashed, *parts.curve(rows, x, y, facets.styles, "speedup")]

    table = dodge(table, facets.lines, facets.size[0])
    return parts.draw_panels(facets, table, layers, ["The dashed line is ideal.", parts.CI_BARS])


def relative_facets(findings: Findings) -> tuple[Facets, pd.DataFrame]:
    """Return the series without limits, and their rows of ``findings.speedups``."""
    facets = facet(without_limits(fixed_dataset(findings.series)))
    names = facets.rows[["series", "panel", "line"]].drop_duplicates("series")
    return facets, findings.speedups.merge(names, on="series")


def _ideal(table: pd.DataFrame) -> pd.DataFrame:
    """Return both ends of the ideal line from each reference count."""
    ends = table.groupby("reference")["gpus"].max().reset_index()
    both = pd.concat([ends.assign(gpus=ends["reference"]), ends])
    return both.assign(at=both["gpus"], mean=both["gpus"] / both["reference"])


def reference_label(table: pd.DataFrame) -> str:
    """Return what the rows of a panel are relative to."""
    counts = sorted(table["reference"].unique())
    return "first point" if len(counts) > 1 else plural(int(counts[0]), "worker")


def law_lines(findings: Findings, facets: Facets) -> pd.DataFrame:
    """Return the laws of the rows that are shown, over their own range, with panel and line."""
    tables = []
    for group, law in findings.fits.laws:
        rows = rows_of_group(facets.rows, group)
        if len(rows):
            table = law.predict(np.geomspace(law.x_min, law.x_max, 17)).rename(columns={"x": "at"})
            tables.append(table.assign(panel=rows["panel"].iloc[0], line=rows["line"].iloc[0]))
    return pd.concat(tables, ignore_index=True) if tables else _NO_LINES
