"""Energy against workers, speed and GPU-hours: its factor, and totals with carbon and cost."""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from wattlaw.analysis.findings import Findings
from wattlaw.analysis.laws.limit_effects import LIMITS, POWER_SETTINGS
from wattlaw.analysis.metrics.metrics import missing_energy
from wattlaw.common import formatting as fmt
from wattlaw.report import charts, tables
from wattlaw.report.charts import Spec
from wattlaw.report.facets import (
    LINE_COLUMNS,
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

#: What energies of these sources are not.
_ORIGINS = {
    "estimated": "Estimated means busy cores times assumed watts: not a measurement.",
    "simulated": "Simulated means from a model of a device: not a measurement.",
    "replayed": "Replayed means from a table: not a measurement of these runs.",
}


def factors(findings: Findings) -> tables.Table | None:
    noun, rows = worker_noun(findings), laws(findings)
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
            tables.interval(f"{noun}-hours per {unit_name(rows)}", "hours", ends=("_min", "_max")),
            tables.text("note", "note"),
        ],
        rows.to_dict("records"),
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
    for row in laws(findings).to_dict("records"):
        limits = [setting_label(kind, row[kind]) for kind in POWER_SETTINGS]
        name = ", ".join(filter(None, [f"{row['workload']} on {row['hardware']}", *limits]))
        factor, power = (tables.with_interval(row, key) for key in ("factor_w", "exponent"))
        yield f"{name}: {factor} W per {noun}; energy grows with {noun}-hours to the power {power}."
    for reason, count in findings.energy_laws["reason"].value_counts().items():
        groups = fmt.plural(int(count), "group")
        yield f"{groups} without an energy law: {fmt.full_stop(str(reason))}"


def laws(findings: Findings) -> Any:
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
