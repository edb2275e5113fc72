"""Environment: hardware, software, settings and workloads."""

from wattlaw.analysis.findings import Findings
from wattlaw.report import tables


def facts(findings: Findings) -> tables.Table | None:
    """Return hardware, software and settings of the runs."""
    columns = [tables.text("item", lambda row: row[0]), tables.text("value", lambda row: row[1])]
    return tables.build("facts", "Environment", columns, findings.facts.items())
