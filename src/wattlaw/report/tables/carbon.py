"""What the measured runs took: GPU-hours, energy, carbon and money, with what was counted."""

from wattlaw.analysis.advice.formatting import ENERGY_UNITS
from wattlaw.analysis.findings import Findings
from wattlaw.formatting import NONE, known, number, text, unit_of
from wattlaw.report.tables.measured import worker
from wattlaw.report.tables.table import Column, Table, make, words


def totals(findings: Findings) -> Table | None:
    """Return the totals of the done runs by workload, hardware and kind of energy."""
    footprint = findings.footprint
    currency = footprint.currency if footprint else None
    size, unit = unit_of(findings.totals["energy_j"], ENERGY_UNITS)
    columns = [
        words("workload", "workload"),
        words("hardware", "hardware"),
        Column("runs", lambda row: number(row["runs"], 9)),
        Column(f"{worker(findings)}-hours", lambda row: number(row["gpu_hours"])),
        Column(f"energy ({unit})", lambda row: number(row["energy_j"] / size)
               if known(row["energy_j"]) else NONE),
        Column("energy is", lambda row: text(row["energy_is"]) if known(row["energy_is"])
               else "not measured", numeric=False),
        Column("kg CO2e", lambda row: number(row.get("co2_kg"))),
        Column(f"cost ({currency})" if currency else "cost", lambda row: number(row.get("cost"))),
    ]  # fmt: skip
    return make(
        "totals",
        "What the measured training windows took",
        columns,
        findings.totals.to_dict("records"),
        note="Training windows after warm-up of the runs that are done. Warm-up, interrupted "
        "windows, evaluation, runs that failed and idle time are not in it.",
    )


def counted(findings: Findings) -> list[str]:
    """Return in words what carbon and cost count, once for each kind of energy."""
    if findings.footprint is None:
        return []
    kinds = findings.totals["energy_is"].dropna().unique()
    return [findings.footprint.counted(str(kind)) for kind in kinds]
