"""Totals of the measured runs: GPU-hours, energy, carbon and cost."""

from wattlaw.analysis.findings import Findings
from wattlaw.formatting import ENERGY_UNITS, choose_unit
from wattlaw.report import tables
from wattlaw.report.topics.measured import worker_noun


def totals(findings: Findings) -> tables.Table | None:
    """Return the totals of the done runs by workload, hardware and kind of energy."""
    footprint = findings.footprint
    currency = footprint.currency if footprint else None
    totals = findings.totals
    size, unit = choose_unit(totals["energy_j"], ENERGY_UNITS)
    totals = totals.assign(energy_is=totals["energy_is"].fillna("not measured"))
    columns = [
        tables.text("workload", "workload"),
        tables.text("hardware", "hardware"),
        tables.number("runs", "runs", 9),
        tables.number(f"{worker_noun(findings)}-hours", "gpu_hours"),
        tables.scaled(f"energy ({unit})", "energy_j", size),
        tables.text("energy is", "energy_is"),
    ]
    if "co2_kg" in totals:
        columns.append(tables.number("kg CO2e", "co2_kg"))
    if "cost" in totals:
        columns.append(tables.number(f"cost ({currency})" if currency else "cost", "cost"))
    return tables.build(
        "totals",
        "Totals of the measured training windows",
        columns,
        totals.to_dict("records"),
        note="Training windows after warm-up of the runs that are done. Not included: warm-up, "
        "interrupted windows, evaluation, failed runs and idle time.",
    )


def counted(findings: Findings) -> tuple[str, ...]:
    """Return what carbon and cost include, for each kind of energy."""
    if findings.footprint is None:
        return ()
    kinds = findings.totals["energy_is"].dropna().unique()
    return tuple(findings.footprint.counted(str(kind)) for kind in kinds)
