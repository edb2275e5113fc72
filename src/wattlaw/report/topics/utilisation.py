"""GPU utilisation: mean, variation over a run, and joint distribution of SM and memory."""

import pandas as pd

from wattlaw.analysis.findings import Findings
from wattlaw.analysis.laws.limit_effects import Limit, without_limits
from wattlaw.common import formatting as fmt
from wattlaw.report import charts
from wattlaw.report.charts import Spec
from wattlaw.report.facets import (
    MAX_LINES,
    PANEL_COLUMNS,
    Facets,
    Quantity,
    against_workers,
    compared_counts,
    facet,
    fixed_dataset,
    shorten_middle,
)
from wattlaw.report.sections import Content, Parts
from wattlaw.report.topics.scaling import facets_by_limit

_PANEL_SIZE = 215
#: Bins of each utilisation in ``store.statistics.joint_utilisation``.
BINS = 20
_MAX_JOBS = 6
_MEAN = ["sm_util_mean", "mem_util_mean"]
_CV = ["sm_util_cv", "mem_util_cv"]


def build(content: Content) -> Parts:
    for name, column in (("SM", "sm_util_mean"), ("Memory", "mem_util_mean")):
        shares = content.findings.settings[column].dropna()
        if len(shares):
            low, high = fmt.percent(shares.min(), 2), fmt.percent(shares.max(), 2)
            text = low if low == high else f"{low} to {high}"
            yield f"{name} utilisation is {text} (means of settings)."
    yield from content.pictures


def mean(findings: Findings) -> Spec | None:
    note = "Values are means over all samples of a run's training windows."
    rows = findings.unlimited_series.dropna(subset=_MEAN, how="all")
    return _sm_and_memory(facet(rows, most=2 * MAX_LINES), _MEAN, "", note)


def variation_by_limit(findings: Findings, limit: Limit) -> Spec | None:
    note = "CV is the standard deviation over the mean, over all samples of a run."
    facets = facets_by_limit(findings.series.dropna(subset=_CV, how="all"), limit)
    return _sm_and_memory(facets, _CV, "CV of ", note)


def _sm_and_memory(facets: Facets, columns: list[str], of: str, note: str) -> Spec | None:
    if facets.rows.empty:
        return None
    quantities = [
        Quantity(column, f"{of}{part} utilisation (%)", 100)
        for column, part in zip(columns, ("SM", "memory"), strict=True)
    ]
    return against_workers(facets, quantities, [note, charts.SD_BARS])


def joint(findings: Findings) -> Spec | None:
    if findings.joint is None or findings.joint.empty:
        return None
    series = findings.series[findings.series["run_id"].isin(findings.joint["run_id"])]
    rows = without_limits(fixed_dataset(series), ["family"])
    if rows.empty:
        return None
    facets = facet(rows, PANEL_COLUMNS, (), one_panel=False)
    panels = []
    for name in facets.panels[:_MAX_JOBS]:
        rows = facets.panel_rows(name)
        for gpus in sorted({*compared_counts(rows["gpus"])}):
            title = ", ".join(filter(None, (name, fmt.plural(int(gpus), "worker"))))
            run_ids = set(rows.loc[rows["gpus"] == gpus, "run_id"])
            counts = findings.joint[findings.joint["run_id"].isin(run_ids)]
            panels.append(_heat_map(counts, shorten_middle(title, 34)))
    notes = [
        "Shares are of all GPU samples in the training windows of runs without caps and clocks.",
        charts.not_shown(len(facets.panels) - _MAX_JOBS, "job"),
    ]
    columns = min(4, len(panels))
    return charts.figure(panels, columns, notes, columns * (_PANEL_SIZE + 60))


def _heat_map(counts: pd.DataFrame, title: str) -> Spec:
    table, step = counts.groupby(["sm_bin", "mem_bin"])["samples"].sum().reset_index(), 100 / BINS
    table = table.assign(
        sm=table["sm_bin"] * step,
        memory=table["mem_bin"] * step,
        sm_end=(table["sm_bin"] + 1) * step,
        memory_end=(table["mem_bin"] + 1) * step,
        share=100 * table["samples"] / table["samples"].sum(),
    )
    scale = {"domain": [0, 100], "nice": False}
    ticks = {"values": [0, 25, 50, 75, 100]}
    colours = {
        "scheme": "viridis", "type": "log", "domain": [0.01, 100], "reverse": True, "clamp": True
    }  # fmt: skip
    legend = {
        "orient": "bottom",
        "gradientLength": 260,
        "values": [0.01, 0.1, 1, 10, 100],
        "format": "~g",
    }
    share = charts.field("share", title="share of samples (%)")
    encoding: Spec = {
        "x": charts.field("sm", title="SM utilisation (%)", scale=scale, axis=ticks),
        "x2": {"field": "sm_end"},
        "y": charts.field("memory", title="memory utilisation (%)", scale=scale, axis=ticks),
        "y2": {"field": "memory_end"},
        "color": share | {"scale": colours, "legend": legend},
        "tooltip": [share],
    }
    return charts.panel([charts.layer(table, "rect", encoding)], title, _PANEL_SIZE, _PANEL_SIZE)
