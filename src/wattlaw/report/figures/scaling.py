"""Time against workers: laws, speedup, efficiency, residuals, and published exponents."""

from collections.abc import Mapping
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from wattlaw.analysis.caps.limits import LIMITS, Limit, other_limit
from wattlaw.analysis.findings import Findings
from wattlaw.analysis.laws.fits import SeriesFit
from wattlaw.formatting import limit_label, plural, setting_label
from wattlaw.reference.published import published
from wattlaw.report.figures import parts
from wattlaw.report.figures.facets import (
    LINE_COLUMNS,
    PANEL_COLUMNS,
    Facets,
    dodge,
    facet,
    fixed_dataset,
    mean_and_sd,
    panel_size,
    without_limits,
)
from wattlaw.report.figures.labels import shorten_middle, unique_labels
from wattlaw.report.theme import CHARACTER_WIDTH, FAINT, INK, line_styles
from wattlaw.report.topics.scaling import rows_of_group, series_label
from wattlaw.report.units import unit_name

#: More runs than this are drawn as their means.
MAX_POINTS = 500
TIME = "time per {unit} (s)"
_NO_LINES = pd.DataFrame(columns=["at", "mean", "low", "high", "panel", "line"])


def epoch_time(findings: Findings) -> alt.ConcatChart | None:
    """Draw the time of a unit against workers, log-log, without caps and clocks, with laws."""
    return _epoch_times(findings, facet(without_limits(fixed_dataset(findings.series))))


def epoch_time_by_limit(findings: Findings, limit: Limit) -> alt.ConcatChart | None:
    """Draw seconds per epoch against workers by cap or clock, a panel per family."""
    return _epoch_times(findings, facets_by_limit(findings.series, limit))


def facets_by_limit(series: pd.DataFrame, limit: Limit) -> Facets:
    """Return series that differ in one limit alone, a panel per family and a line per limit."""
    rows = fixed_dataset(series)
    rows = rows[rows[other_limit(limit)].isna()]
    limits = rows.groupby("family")[limit].transform(lambda values: values.nunique(dropna=False))
    columns = [name for name in LINE_COLUMNS if name != limit]
    return facet(rows[limits > 1], [*PANEL_COLUMNS, *columns], [limit], one_panel=False)


def _epoch_times(findings: Findings, facets: Facets) -> alt.ConcatChart | None:
    if facets.rows.empty:
        return None
    laws = law_lines(findings, facets)
    single = len(facets.rows) <= MAX_POINTS
    points = _runs(facets.rows) if single else mean_and_sd(facets.rows, "time_s")

    def layers(rows: pd.DataFrame) -> list[alt.Chart]:
        lines = facets.panel_rows(rows["panel"].iloc[0], laws)
        title = facets.in_unit(TIME, rows)
        y = parts.y_axis("mean", title, parts.y_values(rows) + parts.y_values(lines), log=True)
        x = parts.workers_axis(rows["gpus"])
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
        "points: runs" if single else f"points: means, {parts.SD_BARS}",
        "lines: t = \u03b1 N^\u2212\u03b2 with its 95 % confidence band, lighter: of a single run"
        if len(laws)
        else "lines join means; a law needs three worker counts",
    ]
    return parts.draw_panels(facets, dodge(points, facets.lines, facets.size[0]), layers, notes)


def speedup(findings: Findings) -> alt.ConcatChart | None:
    """Draw speedup relative to the reference count, with intervals and the ideal line."""
    facets, table = relative_facets(findings)
    if table.empty:
        return None
    table = table.rename(columns={"speedup": "mean", "speedup_low": "low", "speedup_high": "high"})

    def layers(rows: pd.DataFrame) -> list[alt.Chart]:
        ideal = _ideal(rows)
        title = f"speedup (ratio to {reference_label(rows)})"
        y = parts.y_axis("mean", title, [*parts.y_values(rows), *ideal["mean"]], log=True)
        x = parts.workers_axis(rows["gpus"])
        dashed = alt.Chart(ideal).mark_line(strokeDash=[5, 4], color=FAINT)
        dashed = dashed.encode(x=x, y=y, detail="reference:N")
        return [dashed, *parts.curve(rows, x, y, facets.styles, "speedup")]

    table = dodge(table, facets.lines, facets.size[0])
    return parts.draw_panels(facets, table, layers, ["dashed grey: ideal", parts.CI_BARS])


def efficiency(findings: Findings) -> alt.ConcatChart | None:
    """Draw parallel efficiency against workers, with intervals."""
    facets, table = relative_facets(findings)
    if table.empty:
        return None
    names = {"efficiency": "mean", "efficiency_low": "low", "efficiency_high": "high"}
    return parts.against_workers(
        facets, table.rename(columns=names), "parallel efficiency (ratio)",
        ["speedup divided by the growth of workers", parts.CI_BARS], zero=True, reference=1.0,
    )  # fmt: skip


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


def _runs(rows: pd.DataFrame) -> pd.DataFrame:
    table = rows[["panel", "line", "gpus"]].assign(mean=rows["time_s"])
    return table.assign(low=np.nan, high=np.nan)


def law_lines(findings: Findings, facets: Facets) -> pd.DataFrame:
    """Return the laws of the rows that are shown, over their own range, with panel and line."""
    tables = []
    for group, law in findings.fits.laws:
        rows = rows_of_group(facets.rows, group)
        if len(rows):
            table = law.predict(np.geomspace(law.x_min, law.x_max, 17)).rename(columns={"x": "at"})
            tables.append(table.assign(panel=rows["panel"].iloc[0], line=rows["line"].iloc[0]))
    return pd.concat(tables, ignore_index=True) if tables else _NO_LINES


_MAX_PANELS = 6
_POWER = "power law"
_NAMES = {"power": _POWER, "amdahl": "Amdahl", "usl": "USL"}


def residuals(findings: Findings) -> alt.ConcatChart | None:
    """Draw the difference of each run from its series' power law, against workers."""
    facets = facet(without_limits(fixed_dataset(findings.series)))
    tables = []
    for group, law in findings.fits.laws:
        rows = rows_of_group(facets.rows, group)
        if len(rows):
            expected = law.predict(rows["gpus"].to_numpy(float))["mean"].to_numpy(float)
            percents = 100 * (rows["time_s"].to_numpy(float) / expected - 1)
            tables.append(rows[["panel", "line", "gpus"]].assign(mean=np.round(percents, 6)))
    if not tables:
        return None
    table = pd.concat(tables, ignore_index=True)
    if len(table) > MAX_POINTS:
        table = table.groupby(["panel", "line", "gpus"], sort=False)["mean"].mean().reset_index()
    table = dodge(table.assign(low=np.nan, high=np.nan), facets.lines, facets.size[0])

    def layers(rows: pd.DataFrame) -> list[alt.Chart]:
        y = parts.y_axis("mean", "difference from the law (%)", parts.y_values(rows, 0.0))
        x = parts.workers_axis(rows["gpus"])
        points = parts.curve(rows, x, y, facets.styles, "percent", joined=False)
        return [parts.reference_line(0.0), *points]

    notes = ["points: runs", "above 0: slower than t = \u03b1 N^\u2212\u03b2"]
    return parts.draw_panels(facets, table, layers, notes)


def alternatives(findings: Findings) -> alt.ConcatChart | None:
    """Draw the selected law and the power law, where they differ or there is a breakpoint."""
    fits = [fit for fit in findings.fits.rows if _differs(fit)]
    # Series with a cap, a clock or growing data come last.
    special = (*LIMITS, "fraction_per_gpu")
    fits.sort(key=lambda fit: any(fit.group.get(name) is not None for name in special))
    if not fits:
        return None
    shown = fits[:_MAX_PANELS]
    width, height, columns = panel_size(max(2, len(shown)))
    names = unique_labels(map(series_label, shown), int(width / CHARACTER_WIDTH / 1.1))
    laws = dict.fromkeys([_POWER, *(_law_name(fit) for fit in shown)])
    styles = line_styles(list(laws), columns * width, points=False)
    panels = []
    for fit in shown:
        layers = _layers(fit, rows_of_group(findings.series, fit.group), styles)
        name = names[series_label(fit)]
        at = f"; breakpoint at {fit.breakpoint.at:g}" if fit.breakpoint else ""
        panels.append(parts.panel(layers, name, width, height, f"selected: {_law_name(fit)}{at}"))
    hidden = len(fits) - len(shown)
    notes = [
        "points: means over repeats",
        "bands: 95 % confidence",
        "dashed vertical: breakpoint of the power law",
        f"not shown: {hidden} more series (see the tables)" if hidden else "",
    ]
    return parts.concat(panels, columns, notes, columns * (width + 70))


def _differs(fit: SeriesFit) -> bool:
    other = fit.selection is not None and fit.selection.best.law != "power"
    return fit.law is not None and (other or fit.breakpoint is not None)


def _law_name(fit: SeriesFit) -> str:
    name = "power" if fit.selection is None else fit.selection.best.law
    return _NAMES.get(name, name)


def _layers(fit: SeriesFit, rows: pd.DataFrame, styles: dict[str, Any]) -> list[alt.Chart]:
    means = rows.groupby("gpus")["time_s"].mean().reset_index()
    means = means.rename(columns={"gpus": "at", "time_s": "mean"})
    title = TIME.format(unit=unit_name(rows))
    laws = {_POWER: fit.law} | ({_law_name(fit): fit.selection.best} if fit.selection else {})
    lines = pd.concat(
        [
            law.predict(np.geomspace(law.x_min, law.x_max, 33)).assign(line=name)
            for name, law in laws.items()
            if law is not None
        ],
        ignore_index=True,
    ).rename(columns={"x": "at"})
    lines = lines[lines["mean"] > 0]
    x = parts.workers_axis(means["at"])
    y = parts.y_axis("mean", title, [*means["mean"], *lines["mean"]], log=True)
    points = alt.Chart(parts.compact(means, "at", "mean")).mark_point(color=INK, size=40, opacity=1)
    return [
        *([parts.reference_line(fit.breakpoint.at, "x")] if fit.breakpoint else []),
        parts.band(lines, x, y, styles),
        parts.line(lines, x, y, styles, 1.8),
        points.encode(x=x, y=y),
    ]


_OURS, _PUBLISHED = "this store", "published"
_Z = 1.96  # the degrees of freedom of published standard errors are not known
_ROW_HEIGHT, _WIDTH = 30, 480
_MAX_ROWS = 24


def exponents(findings: Findings) -> alt.ConcatChart | None:
    """Draw exponents of this store and published ones, both with intervals."""
    ours = pd.DataFrame([row for fit in findings.fits.rows for row in _fit_rows(fit)])
    theirs = pd.DataFrame(_published_rows())
    if ours.empty:
        return None
    names = [name for name in dict.fromkeys(theirs["name"]) if name in set(ours["name"])]
    if not names:
        return None
    shown = names[:_MAX_ROWS]
    table = pd.concat([ours, theirs], ignore_index=True)
    table = table[table["name"].isin(shown)]
    values = table[["beta", "low", "high"]].to_numpy(float).ravel()
    x = parts.x_axis("beta", "exponent \u03b2 (no unit)", values)
    y = alt.Y("name:N", title=None, sort=shown, scale=alt.Scale(domain=shown))
    offset = alt.Scale(domain=[_OURS, _PUBLISHED], paddingOuter=0.6)
    styles = line_styles([_OURS, _PUBLISHED], _WIDTH)
    styles["yOffset"] = alt.YOffset("line:N", scale=offset)
    tooltip = {"line": "line", "beta": "exponent", "details": "details"}
    layers = [
        *parts.error_bars(table, x, y, styles, horizontal=True),
        parts.points(table, x, y, styles, tooltip),
    ]
    hidden = len(names) - len(shown)
    notes = [
        parts.CI_BARS,
        "published on V100, for another range of N: an exponent depends on it",
        f"not shown: {hidden} more" if hidden else "",
    ]
    chart = parts.panel(layers, "", _WIDTH, _ROW_HEIGHT * len(shown))
    return parts.concat([chart], 1, notes, _WIDTH + 100)


def _fit_rows(fit: SeriesFit) -> list[dict[str, Any]]:
    """Return the row of a law whose data set does not grow."""
    if fit.law is None or fit.group.get("fraction_per_gpu") is not None:
        return []
    low, high = fit.law.trusted.beta_ci
    return [
        {
            "name": _name(str(fit.group["workload"]), fit.group), "line": _OURS,
            "beta": fit.law.beta, "low": low, "high": high,
            "details": f"{fit.law.x_min:g} to {fit.law.x_max:g} workers, {fit.law.n} runs",
        }
    ]  # fmt: skip


def _published_rows() -> list[dict[str, Any]]:
    return [
        {
            "name": _name(row.workload or row.model, vars(row)), "line": _PUBLISHED,
            "beta": row.value, "details": f"{row.where} ({row.study})",
            "low": None if row.se is None else row.value - _Z * row.se,
            "high": None if row.se is None else row.value + _Z * row.se,
        }
        for row in published(quantity="beta")
    ]  # fmt: skip


def _name(workload: str, settings: Mapping[str, Any]) -> str:
    limits = [setting_label(name, settings.get(name)) for name in LIMITS]
    limits = list(filter(None, limits)) or [limit_label("power_limit_w", None)]
    return shorten_middle(", ".join([workload, *limits]), 36)
