"""GPU utilisation: mean, variation over a run, and joint distribution of SM and memory."""

import altair as alt
import pandas as pd

from wattlaw.analysis.findings import Findings
from wattlaw.analysis.laws.limit_effects import Limit
from wattlaw.common.formatting import plural
from wattlaw.report.figures import parts
from wattlaw.report.figures.facets import (
    MAX_LINES,
    PANEL_COLUMNS,
    Facets,
    compared_counts,
    facet,
    fixed_dataset,
    without_limits,
)
from wattlaw.report.figures.labels import shorten_middle
from wattlaw.report.figures.scaling import facets_by_limit
from wattlaw.report.theme import Spec

_PANEL_SIZE = 215
#: Bins of each utilisation in ``store.statistics.joint_utilisation``.
BINS = 20
_MAX_JOBS = 6
_MEAN = ["sm_util_mean", "mem_util_mean"]
_CV = ["sm_util_cv", "mem_util_cv"]


def utilisation(findings: Findings) -> Spec | None:
    """Draw mean SM and memory utilisation against workers, without caps and clocks."""
    note = "Values are means over all samples of a run's training windows."
    rows = _with_values(without_limits(fixed_dataset(findings.series)), _MEAN)
    return _sm_and_memory(facet(rows, most=2 * MAX_LINES), _MEAN, "", note)


def variation_by_limit(findings: Findings, limit: Limit) -> Spec | None:
    """Draw the CV of both utilisations against workers, by cap or clock."""
    note = "CV is the standard deviation over the mean, over all samples of a run."
    facets = facets_by_limit(_with_values(findings.series, _CV), limit)
    return _sm_and_memory(facets, _CV, "CV of ", note)


def _sm_and_memory(facets: Facets, columns: list[str], of: str, note: str) -> Spec | None:
    """Draw a column of SM utilisation and one of memory utilisation."""
    if facets.rows.empty:
        return None
    quantities = [
        parts.Quantity(column, f"{of}{part} utilisation (%)", 100)
        for column, part in zip(columns, ("SM", "memory"), strict=True)
    ]
    return parts.against_workers(facets, quantities, [note, parts.SD_BARS])


def _with_values(rows: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    return rows[rows[columns].notna().any(axis=1)]


def joint(findings: Findings) -> Spec | None:
    """Draw joint memory and SM utilisation at the two worker counts of ``compared_counts``."""
    if findings.joint is None or findings.joint.empty:
        return None
    rows = findings.series[findings.series["run_id"].isin(findings.joint["run_id"])]
    rows = without_limits(fixed_dataset(rows))
    if rows.empty:
        return None
    facets = facet(rows, PANEL_COLUMNS, (), one_panel=False)
    panels = []
    for name in facets.panels[:_MAX_JOBS]:
        rows = facets.panel_rows(name)
        for gpus in sorted({*compared_counts(rows["gpus"])}):
            table = _shares(findings.joint, rows.loc[rows["gpus"] == gpus, "run_id"])
            title = ", ".join(filter(None, (name, plural(int(gpus), "worker"))))
            panels.append(_heat_map(table, shorten_middle(title, 34)))
    hidden = len(facets.panels) - _MAX_JOBS
    notes = [
        "Shares are of all GPU samples in the training windows of runs without caps and clocks.",
        parts.not_shown(hidden, "job"),
    ]
    columns = min(4, len(panels))
    return parts.concat(panels, columns, notes, columns * (_PANEL_SIZE + 60))


def _shares(counts: pd.DataFrame, run_ids: pd.Series) -> pd.DataFrame:
    """Return each bin's share of the samples of these runs, in percent."""
    rows = counts[counts["run_id"].isin(set(run_ids))]
    table = rows.groupby(["sm_bin", "mem_bin"])["samples"].sum().reset_index()
    step = 100 / BINS
    return table.assign(
        sm=table["sm_bin"] * step, memory=table["mem_bin"] * step,
        sm_end=(table["sm_bin"] + 1) * step, memory_end=(table["mem_bin"] + 1) * step,
        share=100 * table["samples"] / table["samples"].sum(),
    )  # fmt: skip


def _heat_map(table: pd.DataFrame, title: str) -> alt.LayerSpec:
    scale = alt.Scale(domain=[0, 100], nice=False)
    ticks = alt.Axis(values=[0, 25, 50, 75, 100])
    shown = parts.compact(table, "sm", "memory", "sm_end", "memory_end", "share")
    base = alt.Chart(shown).mark_rect()
    colour = alt.Color(
        "share:Q",
        title="share of samples (%)",
        scale=alt.Scale(scheme="viridis", type="log", domain=[0.01, 100], reverse=True, clamp=True),
        legend=alt.Legend(orient="bottom", gradientLength=260, values=[0.01, 0.1, 1, 10, 100],
                          format="~g"),
    )  # fmt: skip
    rectangles = base.encode(
        x=alt.X("sm:Q", title="SM utilisation (%)", scale=scale, axis=ticks),
        x2="sm_end:Q",
        y=alt.Y("memory:Q", title="memory utilisation (%)", scale=scale, axis=ticks),
        y2="memory_end:Q",
        color=colour,
        tooltip=[alt.Tooltip("share:Q", title="share of samples (%)")],
    )
    return parts.panel([rectangles], title, _PANEL_SIZE, _PANEL_SIZE)
