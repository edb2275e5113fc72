"""Scaling: exponents, other laws, breakpoints, speedups, and series without a law."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from wattlaw.analysis.laws.limit_effects import POWER_SETTINGS, Limit, other_limit
from wattlaw.common import formatting as fmt
from wattlaw.report import charts, tables
from wattlaw.report.facets import (
    LINE_COLUMNS,
    PANEL_COLUMNS,
    Facets,
    dodge,
    facet,
    fixed_dataset,
    mean_and_sd,
)
from wattlaw.report.sections import Content, Parts, added_sections
from wattlaw.report.topics.measured import worker_noun
from wattlaw.study.labels import group_label

if TYPE_CHECKING:
    from wattlaw.analysis.findings import Findings
    from wattlaw.analysis.laws.fitting import Fit, Fits
    from wattlaw.report.charts import Spec

TIME = "time per {unit} (s)"
#: More runs than this are drawn as their means.
MAX_POINTS = 500
_FROM_MEANS = (
    "* from the means of the counts: repeats of a count share deviations from the law (lack of "
    "fit); else from runs."
)
_ONE_NODE = (
    "A law of runs on one node does not hold on several, where communication takes another "
    "network; predict knows nodes."
)


def _beta_interval(fit: Fit) -> str:
    if fit.law is None:
        return fmt.MISSING
    trusted = fit.law.trusted
    return fmt.interval(*trusted.beta_ci) + "*" * (trusted.interval == "repeats")


def _breakpoint(fit: Fit) -> str:
    point = fit.breakpoint
    if point is None:
        return "not testable" if fit.breakpoint_p is None else "none"
    return f"at {point.at:g}: {point.beta_before:.2f}, then {point.beta_after:.2f}"


def _holdout_error(fit: Fit) -> str:
    error = fit.selection.to_dict()["holdout_error"] if fit.selection else None
    if error is None:
        return fmt.MISSING
    return ("+" if error > 0 else "−") + fmt.percent(abs(error), 2)


_COLUMNS = (
    tables.text("series", lambda fit: group_label(fit.group) or "all runs"),
    tables.text("time per", lambda fit: fit.unit),
    tables.number("α", lambda fit: fit.law.alpha),
    tables.number("β", lambda fit: fit.law.beta),
    tables.number("SE", lambda fit: fit.law.trusted.beta_se, 2),
    tables.Column("95 % interval", _beta_interval),
    tables.number("R²", lambda fit: fit.law.r2, 4),
    tables.Column("p", lambda fit: fmt.p_value(fit.law.p_value)),
    tables.number("runs", lambda fit: fit.law.n),
    tables.Column("N", lambda fit: fmt.interval(fit.law.x_min, fit.law.x_max)),
    tables.text("nodes", lambda fit: "–".join(map(str, dict.fromkeys(fit.nodes or ()))) or None),
    tables.text("selected law", lambda fit: fit.selection.best.law if fit.selection else None),
    tables.text("breakpoint", _breakpoint),
)


def laws(fits: Fits) -> tables.Table | None:
    rows = [fit for fit in fits.rows if fit.law]
    notes = [_FROM_MEANS] if any(_beta_interval(fit).endswith("*") for fit in rows) else []
    notes += [_ONE_NODE] if any(fit.nodes == (1, 1) for fit in rows) else []
    return tables.build(
        "laws", fits.formula, _COLUMNS, rows, note=" ".join(notes), max_rows=len(rows)
    )


def exponents(findings: Findings) -> tables.Table | None:
    added = (column for each in added_sections().values() for column in each.law_columns)
    return tables.build(
        "exponents",
        "Power laws t = α N^−β, by series",
        [*_COLUMNS, tables.Column("its holdout error", _holdout_error), *added],
        [fit for fit in findings.fits.rows if fit.law],
        note="β = 1 is ideal scaling; β = 0 is no speedup. A law is valid for its range of N and "
        "its nodes only. Holdout error: of the selected law at the largest N, when fitted to the "
        f"others. A published β holds for its range of N. SE and interval: {_FROM_MEANS}",
        command="wattlaw export STORE fits -o fits.csv",
        rank=lambda fit: sum(fmt.known(fit.group.get(name)) for name in POWER_SETTINGS),
    )


def speedups(findings: Findings) -> tables.Table | None:
    rows = findings.speedups
    largest = rows.groupby("series")["gpus"].transform("max") == rows["gpus"]
    limited = rows["series"].str.contains(r" (?:W|MHz)(?:,|$)", regex=True)
    rows = rows.assign(_rank=2 * limited.astype(int) - largest.astype(int))
    return tables.build(
        "speedups",
        f"Speedup and energy relative to the reference number of {worker_noun(findings)}s",
        [
            tables.text("series", "series"),
            tables.number("N", "gpus"),
            tables.number("relative to", "reference"),
            tables.number("speedup", "speedup"),
            tables.interval("95 % interval", "speedup"),
            tables.number("parallel efficiency", "efficiency"),
            tables.estimate("energy ratio", "energy_ratio"),
        ],
        rows[rows["gpus"] != rows["reference"]].to_dict("records"),
        note="Ratios of geometric means over repeats. Intervals include other days and nodes; what "
        "both settings share cancels. The reference is the smallest number unless another is set.",
        rank=lambda row: row["_rank"],
    )


def build(content: Content) -> Parts:
    findings = content.findings
    noun, quoted = worker_noun(findings), main_fits(findings)
    for fit in quoted:
        yield _law(fit, noun)
    if findings.fits.laws:
        refusals = Counter(fit.refusal for fit in findings.fits.rows if not fit.law)
        for reason, count in refusals.most_common():
            yield f"{fmt.plural(count, 'fit')} without a law: {fmt.full_stop(str(reason))}"
    else:
        yield _speedup_without_law(findings, noun)
    yield from breakpoints([*quoted, *(fit for fit in findings.fits.rows if fit not in quoted)])
    if findings.speedups["gpus"].nunique() > 1:
        yield from content.pictures
    yield exponents(findings)
    yield speedups(findings)


def breakpoints(fits: Iterable[Fit]) -> Iterator[str]:
    for fit in fits:
        if fit.breakpoint is not None:
            yield f"{group_label(fit.group) or 'all runs'}: {fit.breakpoint.sentence}."


def _speedup_without_law(findings: Findings, noun: str) -> str:
    rows = findings.speedups
    most = rows[rows["gpus"] == rows.groupby("series")["gpus"].transform("max")]
    if (most["gpus"] == most["reference"]).all():
        return f"No series has more than one number of {noun}s."
    low, high = fmt.number(most["speedup"].min()), fmt.number(most["speedup"].max())
    shown = low if low == high else f"{low} to {high}"
    return f"The speedup on the most {noun}s is {shown}; a law needs three {noun} counts."


def _law(fit: Fit, noun: str) -> str:
    law = fit.law
    if law is None:
        return ""
    measured = f"{law.x_min:g} to {law.x_max:g} {noun}s, {fmt.plural(law.n, 'run')}"
    low, high = law.trusted.beta_ci
    bounds, beta = fmt.interval(low, high), fmt.number(law.beta)
    name = group_label(fit.group)
    if bounds == fmt.MISSING:
        alpha = fmt.number(law.alpha)
        return f"{name}: t = {alpha} s per {fit.unit} · N^−{beta} ({measured})."
    doubling = f"{name}: doubling the {noun}s multiplies the time per {fit.unit} by"
    if (point := fit.breakpoint) is not None:
        before, after = (f"{2**-beta:.2f}" for beta in (point.beta_before, point.beta_after))
        return (
            f"{doubling} {before} up to {point.at:g} {noun}s, and by {after} beyond ({measured}). "
            f"The power law over all counts (β = {beta}) fits neither side."
        )
    none = "; over this range, no speedup is shown" if low <= 0 <= high else ""
    return f"{doubling} {2**-law.beta:.2f} (β = {beta}, 95 % interval {bounds}; {measured}){none}."


def main_fits(findings: Findings) -> list[Fit]:
    """Return the fit to quote of each workload and hardware, without limits and with a data set of
    constant size. Of several it is the one with the widest range of N, then with the most runs."""
    chosen: dict[tuple[object, object], Fit] = {}
    widest: dict[tuple[object, object], tuple[float, int]] = {}
    for fit in findings.fits.rows:
        special = (*POWER_SETTINGS, "fraction_per_gpu")
        if fit.law is None or any(fmt.known(fit.group.get(name)) for name in special):
            continue
        key = (fit.group.get("workload"), fit.group.get("hardware"))
        width = (fit.law.x_max / fit.law.x_min, fit.law.n)
        if key not in chosen or width > widest[key]:
            chosen[key], widest[key] = fit, width
    return list(chosen.values())


def rows_of_group(rows: pd.DataFrame, group: dict[str, Any]) -> pd.DataFrame:
    if "fraction_per_gpu" not in group:
        rows = fixed_dataset(rows)
    for name, value in group.items():
        column = "batch" if name in ("global_batch", "local_batch") else name
        rows = rows[rows[column].isna() if value is None else rows[column] == value]
        if column == "batch":
            rows = rows[rows["rule"] == name]
    return rows


def facets_by_limit(series: pd.DataFrame, limit: Limit) -> Facets:
    """Return series that differ in one limit alone, a panel per family and a line per limit."""
    rows = fixed_dataset(series)
    rows = rows[rows[other_limit(limit)].isna()]
    limits = rows.groupby("family")[limit].transform(lambda values: values.nunique(dropna=False))
    columns = [name for name in LINE_COLUMNS if name != limit]
    return facet(rows[limits > 1], [*PANEL_COLUMNS, *columns], [limit], one_panel=False)


def epoch_time(findings: Findings, limit: Limit | None = None) -> Spec | None:
    """Draw the series without limits, or those that differ in one limit alone."""
    facets = facet(findings.unlimited_series)
    if limit is not None:
        facets = facets_by_limit(findings.series, limit)
    if facets.rows.empty:
        return None
    laws = _law_lines(findings, facets)
    single = len(facets.rows) <= MAX_POINTS
    points = mean_and_sd(facets.rows, "time_s")
    if single:
        points = facets.rows[["panel", "line", "gpus"]].assign(mean=facets.rows["time_s"])
        points = points.assign(low=np.nan, high=np.nan)
    styles = facets.styles

    def layers(rows: pd.DataFrame) -> list[Spec]:
        lines = facets.panel_rows(rows["panel"].iloc[0], laws)
        title = facets.in_unit(TIME, rows)
        values = charts.y_values(rows) + charts.y_values(lines)
        x, y = charts.counts_axis(rows["gpus"]), charts.y_axis("mean", title, values, log=True)
        without_law = rows[~rows["line"].isin(lines["line"])]
        means = without_law.groupby(["line", "at"], sort=False)["mean"].mean().reset_index()
        bands = [charts.band(lines, x, y, styles)] if len(lines) else []
        curves = [charts.line(table, x, y, styles) for table in (lines, means) if len(table)]
        return [*bands, *curves, *charts.curve(rows, x, y, styles, title, joined=False)]

    notes = [
        "Points are runs." if single else charts.SD_BARS,
        "Lines are t = \u03b1 N^\u2212\u03b2 with 95 % bands."
        if len(laws)
        else "Lines join means: a law needs three worker counts.",
    ]
    return facets.draw(dodge(points, facets.lines, facets.size[0]), layers, notes)


def _law_lines(findings: Findings, facets: Facets) -> pd.DataFrame:
    """Return the laws of the rows that are shown, over their own range, with panel and line."""
    lines = [pd.DataFrame(columns=["at", "mean", "low", "high", "panel", "line"])]
    for group, law in findings.fits.laws:
        rows = rows_of_group(facets.rows, group)
        if len(rows):
            table = law.predict(np.geomspace(law.x_min, law.x_max, 17)).rename(columns={"x": "at"})
            lines.append(table.assign(panel=rows["panel"].iloc[0], line=rows["line"].iloc[0]))
    return pd.concat(lines[1:] or lines, ignore_index=True)


def speedup_figure(findings: Findings) -> Spec | None:
    facets, table = relative_facets(findings)
    if table.empty:
        return None
    table = table.rename(columns={"speedup": "mean", "speedup_low": "low", "speedup_high": "high"})

    def layers(rows: pd.DataFrame) -> list[Spec]:
        ends = rows.groupby("reference")["gpus"].max().reset_index()
        ideal = pd.concat([ends.assign(gpus=ends["reference"]), ends])
        ideal = ideal.assign(at=ideal["gpus"], mean=ideal["gpus"] / ideal["reference"])
        title = f"speedup (ratio to {reference_label(rows)})"
        x = charts.counts_axis(rows["gpus"])
        y = charts.y_axis("mean", title, [*charts.y_values(rows), *ideal["mean"]], log=True)
        by_reference = {"x": x, "y": y, "detail": charts.field("reference", "nominal")}
        dashed = charts.layer(ideal, "line", by_reference, strokeDash=[5, 4], color=charts.FAINT)
        return [dashed, *charts.curve(rows, x, y, facets.styles, "speedup")]

    table = dodge(table, facets.lines, facets.size[0])
    return facets.draw(table, layers, ["The dashed line is ideal.", charts.CI_BARS])


def relative_facets(findings: Findings) -> tuple[Facets, pd.DataFrame]:
    """Return the series without limits, and their rows of ``findings.speedups``."""
    facets = facet(findings.unlimited_series)
    names = facets.rows[["series", "panel", "line"]].drop_duplicates("series")
    return facets, findings.speedups.merge(names, on="series")


def reference_label(table: pd.DataFrame) -> str:
    counts = sorted(table["reference"].unique())
    return "first point" if len(counts) > 1 else fmt.plural(int(counts[0]), "worker")
