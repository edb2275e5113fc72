"""Energy against GPU-hours, and what the factor between them depends on."""

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from wattlaw.analysis.caps.limits import LIMITS
from wattlaw.analysis.energy_laws import BY
from wattlaw.analysis.findings import Findings
from wattlaw.analysis.metrics import HOUR_S
from wattlaw.formatting import JOULE_UNITS, choose_unit, with_interval
from wattlaw.report.figures.axes import x_axis, y_axis
from wattlaw.report.figures.energy import counted_note
from wattlaw.report.figures.facets import MAX_LINES, Facets, facet
from wattlaw.report.figures.parts import (
    SD_BARS,
    Styles,
    band,
    concat,
    error_bars,
    line,
    panel,
    points,
    y_values,
)
from wattlaw.report.theme import line_styles
from wattlaw.report.topics.measured import worker_noun

_WIDTH, _HEIGHT = 400, 290
#: Of more settings, only each nth is drawn.
_MAX_POINTS = 600


def gpu_hours(findings: Findings) -> alt.ConcatChart | None:
    """Draw energy against GPU-hours per epoch, with each group's line through the origin."""
    facets = _settings(findings)
    if facets is None:
        return None
    size, unit = choose_unit(facets.rows["energy_per_epoch_j"], JOULE_UNITS)
    table = _with_sd(facets.rows, "energy_per_epoch_j", size)
    table = table.rename(columns={"gpu_hours_per_epoch": "at"})
    lines = _law_lines(findings, facets, size)
    styles = line_styles(facets.lines, 600)
    noun = worker_noun(findings)
    x = x_axis("at", f"{noun}-hours per epoch (h)", table["at"], log=True)
    heights = [*y_values(table), *lines["mean"]]
    y = y_axis("mean", f"energy per epoch ({unit})", heights, log=True)
    laws = [band(lines, x, y, styles), line(lines, x, y, styles)] if len(lines) else []
    notes = [
        "points: settings, means over repeats",
        SD_BARS,
        f"lines: energy = mean power x {noun}-hours, with 95 % band" if len(lines) else "",
        counted_note(findings),
        facets.omitted,
    ]
    chart = panel([*laws, *_points(table, x, y, styles)], "", 540, 340)
    return concat([chart], 1, notes, 600)


def factor(findings: Findings) -> alt.ConcatChart | None:
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
        x = x_axis("at", f"{rate} per {noun}-hour (1/h)", rows["at"], log=True)
        y = y_axis("mean", f"mean power per {noun} (W)", y_values(rows))
        panels.append(panel(_points(rows, x, y, styles), "", _WIDTH, _HEIGHT))
    if not panels:
        return None
    notes = ["points: settings, means over repeats", SD_BARS, counted_note(findings)]
    return concat(panels, 2, [*notes, *_elasticities(findings), facets.omitted], 2 * _WIDTH)


def _settings(findings: Findings) -> Facets | None:
    """Return the settings with energy, without limits if there are any, as for the laws."""
    cells = findings.settings
    cells = cells[cells["energy_per_epoch_j"].notna() & cells["energy_is"].notna()]
    unlimited = cells[cells[list(LIMITS)].isna().all(axis=1)]
    rows = cells if unlimited.empty else unlimited
    if rows.empty:
        return None
    rows = rows.iloc[:: -(-len(rows) // _MAX_POINTS)]
    return facet(rows, (), BY, most=2 * MAX_LINES)


def _with_sd(rows: pd.DataFrame, column: str, size: float) -> pd.DataFrame:
    mean, sd = rows[column] / size, rows[f"{column}_sd"] / size
    return rows.assign(mean=mean, low=mean - sd, high=mean + sd)


def _points(table: pd.DataFrame, x: alt.X, y: alt.Y, styles: Styles) -> list[alt.Chart]:
    tooltip = {"line": "line", "gpus": "workers", "global_batch": "global batch"}
    return [*error_bars(table, x, y, styles), points(table, x, y, styles, tooltip, 40)]


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
    return tuple("" if pd.isna(row[name]) else str(row[name]) for name in BY)


def _elasticities(findings: Findings) -> list[str]:
    """Return the results of the regression for both rates."""
    if findings.factor_model is None:
        return []
    terms = findings.factor_model.terms.set_index("term")
    return [
        f"elasticity with {rate} {with_interval(term['estimate'], term['low'], term['high'], 2)}"
        for rate in ("samples", "steps")
        if f"log_{rate}" in terms.index
        for term in [terms.loc[f"log_{rate}"]]
    ]
