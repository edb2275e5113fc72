"""How busy GPUs are: mean, variation over a run, and the joint distribution of SM and memory."""

import altair as alt
import pandas as pd

from wattlaw.analysis.caps.limits import Limit
from wattlaw.analysis.findings import Findings
from wattlaw.formatting import plural
from wattlaw.report.figures.energy import BARS
from wattlaw.report.figures.facets import (
    JOB,
    MOST_LINES,
    Arranged,
    arranged,
    fixed_data,
    free,
)
from wattlaw.report.figures.labels import short_all
from wattlaw.report.figures.parts import Quantity, compact, panel, picture, side_by_side
from wattlaw.report.figures.scaling import limited

_SQUARE = 215
#: Bins of each utilisation in ``store.statistics.joint_utilisation``.
BINS = 20
_MOST_JOBS = 6


def utilisation(findings: Findings) -> alt.ConcatChart | None:
    """Mean SM and memory utilisation against workers, without caps and clocks."""
    rows = free(fixed_data(findings.series))
    rows = rows[rows[["sm_util_mean", "mem_util_mean"]].notna().any(axis=1)]
    if rows.empty:
        return None
    shown = arranged(rows, most=2 * MOST_LINES)
    both = (
        Quantity("sm_util_mean", "SM utilisation (%)", 100),
        Quantity("mem_util_mean", "memory utilisation (%)", 100),
    )
    words = ["mean over all samples of a run's training windows", BARS, shown.left_out]
    return side_by_side(shown, both, "GPU utilisation", words)


def variation_by_cap(findings: Findings) -> alt.ConcatChart | None:
    """Coefficient of variation of both utilisations against workers, by power cap."""
    return _variation(findings, "power_limit_w", "Variation of utilisation by power cap")


def variation_by_clock(findings: Findings) -> alt.ConcatChart | None:
    """Coefficient of variation of both utilisations against workers, by SM clock."""
    return _variation(findings, "clock_limit_mhz", "Variation of utilisation by SM clock")


def variation(findings: Findings) -> alt.ConcatChart | None:
    """Coefficient of variation of both utilisations against workers, without caps and clocks."""
    rows = free(fixed_data(findings.series))
    rows = rows[rows[["sm_util_cv", "mem_util_cv"]].notna().any(axis=1)]
    if rows.empty:
        return None
    return _variations(arranged(rows, most=2 * MOST_LINES), "Variation of utilisation")


def _variation(findings: Findings, limit: Limit, title: str) -> alt.ConcatChart | None:
    there = findings.series[findings.series[["sm_util_cv", "mem_util_cv"]].notna().any(axis=1)]
    shown = limited(there, limit)
    return None if shown is None else _variations(shown, title)


def _variations(shown: Arranged, title: str) -> alt.ConcatChart:
    both = (
        Quantity("sm_util_cv", "CV of SM utilisation (%)", 100),
        Quantity("mem_util_cv", "CV of memory utilisation (%)", 100),
    )
    words = ["CV: standard deviation over mean, over all samples of a run", BARS, shown.left_out]
    return side_by_side(shown, both, title, words)


def joint(findings: Findings) -> alt.ConcatChart | None:
    """Joint memory and SM utilisation at the smallest and the largest worker count."""
    if findings.joint is None or findings.joint.empty:
        return None
    rows = findings.series[findings.series["run_id"].isin(findings.joint["run_id"])]
    rows = free(fixed_data(rows))
    if rows.empty:
        return None
    shown = arranged(rows, JOB, (), one_panel=False)
    panels = []
    jobs = shown.panels[:_MOST_JOBS]
    for name in jobs:
        mine = shown.of(name)
        for gpus in sorted({mine["gpus"].min(), mine["gpus"].max()}):
            table = _shares(findings.joint, mine.loc[mine["gpus"] == gpus, "run_id"])
            many = plural(int(gpus), "worker")
            panels.append(_heat(table, f"{name}, {many}" if name else many))
    hidden = len(shown.panels) - len(jobs)
    words = [
        "share of all GPU samples in the training windows of runs without caps and clocks",
        f"not shown: {hidden} more jobs" if hidden else "",
    ]
    columns = min(4, len(panels))
    return picture(panels, columns, "Joint utilisation", words, columns * (_SQUARE + 60))


def _shares(counts: pd.DataFrame, runs: pd.Series) -> pd.DataFrame:
    """Return each bin's share of the samples, in percent; samples of all runs count alike."""
    mine = counts[counts["run_id"].isin(set(runs))]
    table = mine.groupby(["sm_bin", "mem_bin"])["samples"].sum().reset_index()
    step = 100 / BINS
    return table.assign(
        sm=table["sm_bin"] * step, memory=table["mem_bin"] * step,
        sm_to=(table["sm_bin"] + 1) * step, memory_to=(table["mem_bin"] + 1) * step,
        share=100 * table["samples"] / table["samples"].sum(),
    )  # fmt: skip


def _heat(table: pd.DataFrame, name: str) -> alt.LayerChart:
    across = alt.Scale(domain=[0, 100], nice=False)
    ticks = alt.Axis(values=[0, 25, 50, 75, 100])
    names = ("sm", "memory", "sm_to", "memory_to", "share")
    base = alt.Chart(compact(table, *names)).mark_rect()
    colour = alt.Color(
        "share:Q",
        title="share of samples (%)",
        scale=alt.Scale(scheme="viridis", type="log", domain=[0.01, 100], reverse=True, clamp=True),
        legend=alt.Legend(orient="bottom", gradientLength=260, values=[0.01, 0.1, 1, 10, 100],
                          format="~g"),
    )  # fmt: skip
    heat = base.encode(
        x=alt.X("sm:Q", title="SM utilisation (%)", scale=across, axis=ticks),
        x2="sm_to:Q",
        y=alt.Y("memory:Q", title="memory utilisation (%)", scale=across, axis=ticks),
        y2="memory_to:Q",
        color=colour,
        tooltip=[alt.Tooltip("share:Q", title="share of samples (%)")],
    )
    label = next(iter(short_all([name], 34).values()))
    return panel([heat], label, _SQUARE, _SQUARE)
