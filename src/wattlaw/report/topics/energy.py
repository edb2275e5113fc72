"""Energy against workers, speed and GPU-hours: its factor, and totals with carbon and cost."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from wattlaw.analysis.findings import Findings
from wattlaw.analysis.laws.energy_laws import GROUP_COLUMNS
from wattlaw.analysis.laws.limit_effects import LIMITS, POWER_SETTINGS
from wattlaw.analysis.metrics.metrics import HOUR_S, missing_energy
from wattlaw.common import formatting as fmt
from wattlaw.report import charts, tables
from wattlaw.report.charts import Spec
from wattlaw.report.facets import (
    LINE_COLUMNS,
    MAX_LINES,
    Facets,
    Quantity,
    against_workers,
    facet,
    shorten_middle,
    unit_name,
)
from wattlaw.report.sections import BulletList, Content, Parts
from wattlaw.report.topics.measured import joule_scale, suspect_note, worker_noun
from wattlaw.report.topics.scaling import reference_label, relative_facets
from wattlaw.study.labels import setting_label

_FACTOR = ("factor_w", "factor_w_low", "factor_w_high")
_WIDTH, _HEIGHT = 400, 290
#: With more settings, only every nth is drawn.
_MAX_POINTS = 600
#: What energies of these sources are not.
_ORIGINS = {
    "estimated": "Estimated means busy cores times assumed watts: not a measurement.",
    "simulated": "Simulated means from a model of a device: not a measurement.",
    "replayed": "Replayed means from a table: not a measurement of these runs.",
}


def factors(findings: Findings) -> tables.Table | None:
    noun, laws = worker_noun(findings), _laws(findings)
    return tables.build(
        "factors",
        f"Energy factor by workload and hardware: E = factor · {noun}-hours",
        [
            tables.text("workload", "workload"),
            tables.text("hardware", "hardware"),
            *(tables.limit(kind) for kind in LIMITS if findings.energy_laws[kind].notna().any()),
            tables.text("power profile", "power_profile"),
            tables.text("energy is", "energy_is"),
            tables.estimate(f"factor (W per {noun})", "factor_w"),
            tables.number("R²", "r2_origin", 4),
            tables.estimate("exponent", "exponent"),
            tables.number("settings", "n"),
            tables.interval(f"{noun}-hours per {unit_name(laws)}", "hours", ends=("_min", "_max")),
            tables.text("note", "note"),
        ],
        laws.to_dict("records"),
        note=f"The factor is the mean power of a {noun} (and its share of the host, where that is "
        "counted) while training. Energy is proportional to the hours where the exponent is 1."
        f"{suspect_note(findings)}",
    )


def totals(findings: Findings) -> tables.Table | None:
    totals, currency = findings.totals, findings.footprint and findings.footprint.currency
    size, unit = fmt.choose_unit(totals["energy_j"], fmt.ENERGY_UNITS)
    costs = {"co2_kg": "kg CO2e", "cost": f"cost ({currency})" if currency else "cost"}
    return tables.build(
        "totals",
        "Totals of the training windows, by source",
        [
            tables.text("workload", "workload"),
            tables.text("hardware", "hardware"),
            tables.text("values are", "source"),
            tables.number("runs", "runs", 9),
            tables.number(f"{worker_noun(findings)}-hours", "gpu_hours"),
            tables.number(f"energy ({unit})", "energy_j", size=size),
            tables.text("energy is", lambda row: row["energy_is"] or "not measured"),
            *(tables.number(title, name) for name, title in costs.items() if name in totals),
        ],
        totals.assign(energy_is=totals["energy_is"].fillna("")).to_dict("records"),
        note="Training windows after warm-up of the runs that are done. Not included: warm-up, "
        "interrupted windows, evaluation, failed runs and idle time.",
    )


def build(content: Content) -> Parts:
    findings = content.findings
    yield from _sentences(findings)
    if findings.energy is not None:
        yield from content.pictures
        yield factors(findings)
    if (footprint := findings.footprint) is not None:
        yield totals(findings)
        kinds = findings.totals["energy_is"].dropna().unique()
        counted = tuple(footprint.counted(str(kind)) for kind in kinds)
        yield BulletList("What carbon and cost include", counted)


def _sentences(findings: Findings) -> Iterator[str]:
    if findings.energy is None:
        why = "no meter was available. measure.assume_cpu_w gives an estimate, marked as such."
        if findings.sources_label == "imported":
            why = "the table has none."
        yield f"Energy is not known: {fmt.full_stop(missing_energy(findings.runs) or why)}"
        return
    caveats = [text for origin, text in _ORIGINS.items() if origin in findings.energy]
    yield " ".join([f"Energies include: {findings.energy}.", *caveats])
    noun = worker_noun(findings)
    for row in _laws(findings).to_dict("records"):
        limits = [setting_label(kind, row[kind]) for kind in POWER_SETTINGS]
        name = ", ".join(filter(None, [f"{row['workload']} on {row['hardware']}", *limits]))
        factor, power = (tables.with_interval(row, key) for key in ("factor_w", "exponent"))
        yield f"{name}: {factor} W per {noun}; energy grows with {noun}-hours to the power {power}."
    for reason, count in findings.energy_laws["reason"].value_counts().items():
        groups = fmt.plural(int(count), "group")
        yield f"{groups} without an energy law: {fmt.full_stop(str(reason))}"


def _laws(findings: Findings) -> Any:
    return findings.energy_laws[findings.energy_laws["reason"].isna()]


def energy_figure(findings: Findings) -> Spec | None:
    """Draw energy per unit against workers; lines join only energies that count the same."""
    rows = findings.unlimited_series
    rows = rows[rows["energy_j"].notna()]
    if rows.empty:
        return None
    facets = facet(rows, line_by=(*LINE_COLUMNS, "energy_is"))
    notes = [counted_note(findings), charts.SD_BARS]
    return against_workers(facets, [energy_quantity(facets.rows)], notes)


def energy_quantity(rows: pd.DataFrame) -> Quantity:
    size, unit = joule_scale(rows)
    return Quantity("energy_j", f"energy per {{unit}} ({unit})", 1 / size)


def counted_note(findings: Findings) -> str:
    return f"Counted: {shorten_middle(str(findings.energy), 110)}."


def energy_speed(findings: Findings) -> Spec | None:
    facets, table = relative_facets(findings)
    table = table[table["energy_ratio"].notna()]
    if table.empty:
        return None
    counts = sorted({int(count) for count in table["gpus"]})
    styles = facets.styles
    styles["size"] = charts.field(
        "gpus", scale={"type": "log", "domain": [counts[0], counts[-1] + 1], "range": [15, 220]},
        legend={"title": "workers", "orient": "bottom", "direction": "horizontal",
                "values": counts[:: -(-len(counts) // 6)], "format": "d"},
    )  # fmt: skip

    def layers(rows: pd.DataFrame) -> list[Spec]:
        reference = reference_label(rows)
        speeds, energies = (
            [*rows[[name, f"{name}_low", f"{name}_high"]].to_numpy(float).ravel(), 1.0]
            for name in ("speedup", "energy_ratio")
        )
        x = charts.x_axis("speedup", f"speed (ratio to {reference})", speeds, log=True)
        y = charts.y_axis("energy_ratio", f"energy (ratio to {reference})", energies)
        joined = {"x": x, "y": y, "order": charts.field("gpus")}
        joined |= {name: styles[name] for name in ("color", "strokeDash")}
        tooltip = {"line": "line", "gpus": "workers"}
        return [
            charts.reference_line(1.0),
            *charts.error_bars(rows, x, y, styles, "energy_ratio_low", "energy_ratio_high"),
            *charts.error_bars(rows, x, y, styles, "speedup_low", "speedup_high", horizontal=True),
            charts.layer(rows, "line", joined, strokeWidth=1.2),
            charts.points(rows, x, y, styles, tooltip, None),
        ]

    notes = ["Larger points have more workers.", charts.CI_BARS, counted_note(findings)]
    return facets.draw(table, layers, notes)


def gpu_hours(findings: Findings) -> Spec | None:
    facets = _settings(findings)
    if facets is None:
        return None
    size, unit = joule_scale(facets.rows)
    table = _with_sd(facets.rows.rename(columns={"gpu_hours": "at"}), "energy_j", size)
    lines = _law_lines(findings, facets, size)
    styles = charts.line_styles(facets.lines, 600)
    noun, of = worker_noun(findings), unit_name(facets.rows)
    x = charts.x_axis("at", f"{noun}-hours per {of} (h)", table["at"], log=True)
    heights = [*charts.y_values(table), *lines["mean"]]
    y = charts.y_axis("mean", f"energy per {of} ({unit})", heights, log=True)
    notes, laws = ["Each point is a setting.", charts.SD_BARS], []
    if len(lines):
        laws = [charts.band(lines, x, y, styles), charts.line(lines, x, y, styles)]
        notes.append(f"Lines are energy = mean power x {noun}-hours, with their 95 % bands.")
    chart = charts.panel([*laws, *_points(table, x, y, styles)], "", 540, 340)
    return charts.figure([chart], 1, [*notes, counted_note(findings), facets.omitted], 600)


def factor(findings: Findings) -> Spec | None:
    facets = _settings(findings)
    if facets is None:
        return None
    table = _with_sd(facets.rows, "energy_per_gpu_hour_j", HOUR_S)
    styles, noun = charts.line_styles(facets.lines, 2 * _WIDTH), worker_noun(findings)
    notes = ["Each point is a setting.", charts.SD_BARS, counted_note(findings)]
    panels = []
    for rate in ("samples", "steps"):
        rows = table.rename(columns={f"{rate}_per_gpu_hour": "at"})
        rows = rows[rows["at"] > 0]
        if len(rows):
            x = charts.x_axis("at", f"{rate} per {noun}-hour (1/h)", rows["at"], log=True)
            y = charts.y_axis("mean", f"mean power per {noun} (W)", charts.y_values(rows))
            panels.append(charts.panel(_points(rows, x, y, styles), "", _WIDTH, _HEIGHT))
    if not panels:
        return None
    return charts.figure(panels, 2, [*notes, facets.omitted], 2 * _WIDTH)


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


def _points(table: pd.DataFrame, x: Spec, y: Spec, styles: charts.Styles) -> list[Spec]:
    tooltip = {"line": "line", "gpus": "workers", "global_batch": "global batch"}
    return [
        *charts.error_bars(table, x, y, styles),
        charts.points(table, x, y, styles, tooltip, 40),
    ]


def _law_lines(findings: Findings, facets: Facets, size: float) -> pd.DataFrame:
    """Return E = factor x 3600 h over the measured hours of each group that is shown."""

    def key(row: dict[Any, Any]) -> tuple[str, ...]:
        return tuple("" if pd.isna(row[name]) else str(row[name]) for name in GROUP_COLUMNS)

    names = {key(row): row["line"] for row in facets.rows.to_dict("records")}
    lines = [pd.DataFrame(columns=["at", "mean", "low", "high", "line"])]
    for law in _laws(findings).to_dict("records"):
        if name := names.get(key(law)):
            at = np.geomspace(law["hours_min"], law["hours_max"], 9)
            ends = {
                end: law[column] * HOUR_S * at / size
                for end, column in zip(("mean", "low", "high"), _FACTOR, strict=True)
            }
            lines.append(pd.DataFrame({"at": at, **ends, "line": name}))
    return pd.concat(lines[1:] or lines)
