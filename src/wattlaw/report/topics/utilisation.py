"""GPU utilisation: the means of runs over their training windows."""

from wattlaw.analysis.findings import Findings
from wattlaw.common import formatting as fmt
from wattlaw.report import charts
from wattlaw.report.charts import Spec
from wattlaw.report.facets import MAX_LINES, Quantity, against_workers, facet
from wattlaw.report.sections import Content, Parts

_MEANS = {"SM": "sm_util_mean", "memory": "mem_util_mean"}


def build(content: Content) -> Parts:
    for name, column in _MEANS.items():
        shares = content.findings.settings[column].dropna()
        if len(shares):
            low, high = fmt.percent(shares.min(), 2), fmt.percent(shares.max(), 2)
            text = low if low == high else f"{low} to {high}"
            yield fmt.sentence(f"{name} utilisation is {text} (means of settings)")
    yield from content.pictures


def mean(findings: Findings) -> Spec | None:
    rows = findings.unlimited_series.dropna(subset=list(_MEANS.values()), how="all")
    if rows.empty:
        return None
    quantities = [
        Quantity(column, f"{part} utilisation (%)", 100) for part, column in _MEANS.items()
    ]
    notes = ["Values are means over all samples of a run's training windows.", charts.SD_BARS]
    return against_workers(facet(rows, most=2 * MAX_LINES), quantities, notes)
