"""Energy and power against workers, speed and GPU-hours."""

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from wattlaw.analysis.findings import Findings
from wattlaw.analysis.laws.energy_laws import GROUP_COLUMNS
from wattlaw.analysis.laws.limit_effects import POWER_SETTINGS
from wattlaw.analysis.metrics.metrics import HOUR_S
from wattlaw.common.formatting import with_interval
from wattlaw.report.figures import parts
from wattlaw.report.figures.facets import (
    LINE_COLUMNS,
    MAX_LINES,
    Facets,
    facet,
    fixed_dataset,
    without_limits,
)
from wattlaw.report.figures.labels import shorten_middle
from wattlaw.report.figures.point_labels import point_labels
from wattlaw.report.figures.scaling import reference_label, relative_facets
from wattlaw.report.theme import Spec, line_styles
from wattlaw.report.topics.measured import joule_scale, unit_name, worker_noun


def energy(findings: Findings) -> Spec | None:
    """Draw energy per unit against workers; lines join only energies that count the same."""
    rows = without_limits(fixed_dataset(findings.series))
    rows = rows[rows["energy_j"].notna()]
    if rows.empty:
        return None
    facets = facet(rows, line_by=(*LINE_COLUMNS, "energy_is"))
    return parts.against_workers(facets, [energy_quantity(facets.rows)],
                                 [counted_note(findings), parts.SD_BARS])  # fmt: skip


def energy_quantity(rows: pd.DataFrame) -> parts.Quantity:
    """Return the energy of a unit of work in the unit of energy that suits rows."""
    size, unit = joule_scale(rows)
    return parts.Quantity("energy_j", f"energy per {{unit}} ({unit})", 1 / size)


def counted_note(findings: Findings) -> str:
    """Return a note on what energies count."""
    return f"Counted: {shorten_middle(str(findings.energy), 110)}."


def energy_speed(findings: Findings) -> Spec | None:
    """Draw normalised energy against normalised speed, points labelled with the worker count."""
    facets, table = relative_facets(findings)
    table = table[table["energy_ratio"].notna()]
    if table.empty:
        return None
    styles = facets.styles

    def layers(rows: pd.DataFrame) -> list[alt.Chart]:
        reference = reference_label(rows)
        speeds, energies = (
            [*rows[[name, f"{name}_low", f"{name}_high"]].to_numpy(float).ravel(), 1.0]
            for name in ("speedup", "energy_ratio")
        )
        x = parts.x_axis("speedup", f"speed (ratio to {reference})", speeds, log=True)
        y = parts.y_axis("energy_ratio", f"energy (ratio to {reference})", energies)
        joined = alt.Chart(parts.compact(rows, "speedup", "energy_ratio", "line", "gpus"))
        joined = joined.mark_line(strokeWidth=1.2).encode(
            x=x, y=y, order="gpus:Q", color=styles["color"], strokeDash=styles["strokeDash"]
        )
        largest_first = np.argsort(-rows["gpus"].to_numpy(), kind="stable")
        is_reference = (rows["gpus"] == rows["reference"]).to_numpy()
        tooltip = {"line": "line", "gpus": "workers"}
        return [
            parts.reference_line(1.0),
            *parts.error_bars(rows, x, y, styles, "energy_ratio_low", "energy_ratio_high"),
            *parts.error_bars(rows, x, y, styles, "speedup_low", "speedup_high", horizontal=True),
            joined,
            parts.points(rows, x, y, styles, tooltip),
            *point_labels(
                rows, x, y, facets.size[:2], "gpus", ("energy_ratio_low", "energy_ratio_high"),
                [i for i in largest_first if not is_reference[i]],
            ),
        ]  # fmt: skip

    notes = ["Numbers are workers, where there is space.", parts.CI_BARS, counted_note(findings)]
    return parts.draw_panels(facets, table, layers, notes)


_WIDTH, _HEIGHT = 400, 290
#: With more settings, only every nth is drawn.
_MAX_POINTS = 600


def gpu_hours(findings: Findings) -> Spec | None:
    """Draw energy against GPU-hours of a unit, with each group's line through the origin."""
    facets = _settings(findings)
    if facets is None:
        return None
    size, unit = joule_scale(facets.rows)
    table = _with_sd(facets.rows, "energy_j", size)
    table = table.rename(columns={"gpu_hours": "at"})
    lines = _law_lines(findings, facets, size)
    styles, of = line_styles(facets.lines, 600), unit_name(facets.rows)
    noun = worker_noun(findings)
    x = parts.x_axis("at", f"{noun}-hours per {of} (h)", table["at"], log=True)
    heights = [*parts.y_values(table), *lines["mean"]]
    y = parts.y_axis("mean", f"energy per {of} ({unit})", heights, log=True)
    laws = [parts.band(lines, x, y, styles), parts.line(lines, x, y, styles)] if len(lines) else []
    notes = [
        "Each point is a setting.",
        parts.SD_BARS,
        f"Lines are energy = mean power x {noun}-hours, with their 95 % bands."
        if len(lines)
        else "",
        counted_note(findings),
        facets.omitted,
    ]
    chart = parts.panel([*laws, *_points(table, x, y, styles)], "", 540, 340)
    return parts.concat([chart], 1, notes, 600)


def factor(findings: Findings) -> Spec | None:
    """Draw mean power per GPU against samples and against optimizer steps per GPU-hour."""
    facets = _settings(findings)
    if facets is None:
        return None
    table = _with_sd(facets.rows, "energy_per_gpu_hour_j", HOUR_S)
    styles = line_styles(facets.lines, 2 * _WIDTH)
    noun = worker_noun(findings)
    panels = []
    for rate in ("samples", "steps"):
        rows = table.rename(columns={f"{rate}_per_gpu_hour": "at"})
        rows = rows[rows["at"] > 0]
        if rows.empty:
            continue
        x = parts.x_axis("at", f"{rate} per {noun}-hour (1/h)", rows["at"], log=True)
        y = parts.y_axis("mean", f"mean power per {noun} (W)", parts.y_values(rows))
        panels.append(parts.panel(_points(rows, x, y, styles), "", _WIDTH, _HEIGHT))
    if not panels:
        return None
    notes = ["Each point is a setting.", parts.SD_BARS, counted_note(findings)]
    return parts.concat(panels, 2, [*notes, *_elasticities(findings), facets.omitted], 2 * _WIDTH)


def _settings(findings: Findings) -> Facets | None:
    """Return the settings with energy, without limits if there are any, as for the laws."""
    cells = findings.settings
    cells = cells[cells["energy_j"].notna() & cells["energy_is"].notna()]
    unlimited = cells[cells[list(POWER_SETTINGS)].isna().all(axis=1)]
    rows = cells if unlimited.empty else unlimited
    if rows.empty:
        return None
    rows = rows.iloc[:: -(-len(rows) // _MAX_POINTS)]
    return facet(rows, (), GROUP_COLUMNS, most=2 * MAX_LINES)


def _with_sd(rows: pd.DataFrame, column: str, size: float) -> pd.DataFrame:
    mean, sd = rows[column] / size, rows[f"{column}_sd"] / size
    return rows.assign(mean=mean, low=mean - sd, high=mean + sd)


def _points(table: pd.DataFrame, x: alt.X, y: alt.Y, styles: parts.Styles) -> list[alt.Chart]:
    tooltip = {"line": "line", "gpus": "workers", "global_batch": "global batch"}
    return [*parts.error_bars(table, x, y, styles), parts.points(table, x, y, styles, tooltip, 40)]


def _law_lines(findings: Findings, facets: Facets, size: float) -> pd.DataFrame:
    """Return E = factor x 3600 h over the measured hours of each group that is shown."""
    laws = findings.energy_laws[findings.energy_laws["reason"].isna()]
    names = {_key(row): row["line"] for row in facets.rows.to_dict("records")}
    columns = {"mean": "factor_w", "low": "factor_w_low", "high": "factor_w_high"}
    tables = [pd.DataFrame(columns=["at", *columns, "line"])]
    for law in laws.to_dict("records"):
        if name := names.get(_key(law)):
            at = np.geomspace(law["hours_min"], law["hours_max"], 9)
            ends = {end: law[column] * HOUR_S * at / size for end, column in columns.items()}
            tables.append(pd.DataFrame({"at": at, **ends, "line": name}))
    return pd.concat(tables[1:] or tables)


def _key(row: dict[Any, Any]) -> tuple[str, ...]:
    return tuple("" if pd.isna(row[name]) else str(row[name]) for name in GROUP_COLUMNS)


def _elasticities(findings: Findings) -> list[str]:
    """Return the results of the regression for both rates."""
    if findings.factor_model is None:
        return []
    terms = findings.factor_model.terms.set_index("term")
    return [
        f"Elasticity with {rate}: {with_interval(term['estimate'], term['low'], term['high'], 2)}."
        for rate in ("samples", "steps")
        if f"log_{rate}" in terms.index
        for term in [terms.loc[f"log_{rate}"]]
    ]
