"""The figures of the two studies that the sections of the core do not have."""

from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from wattlaw.analysis.findings import Findings
from wattlaw.analysis.laws.energy_laws import GROUP_COLUMNS
from wattlaw.analysis.laws.limit_effects import POWER_SETTINGS, Limit, without_limits
from wattlaw.analysis.metrics.metrics import HOUR_S
from wattlaw.common import formatting as fmt
from wattlaw.report import charts
from wattlaw.report.charts import Spec
from wattlaw.report.facets import (
    LINE_COLUMNS,
    MAX_LINES,
    PANEL_COLUMNS,
    Facets,
    Quantity,
    against_workers,
    compared_counts,
    facet,
    fixed_dataset,
    shorten_middle,
    unit_name,
)
from wattlaw.report.pictures import Figure
from wattlaw.report.topics.energy import counted_note, energy_quantity, laws
from wattlaw.report.topics.measured import joule_scale, worker_noun
from wattlaw.report.topics.scaling import TIME, facets_by_limit

#: The columns of a law's factor, as the mean and the ends of its interval.
_FACTOR = {"mean": "factor_w", "low": "factor_w_low", "high": "factor_w_high"}
_WIDTH, _HEIGHT = 400, 290
#: With more settings, only every nth is drawn.
_MAX_POINTS = 600
_PANEL_SIZE = 215
#: Bins of each utilisation in ``store.statistics.joint_utilisation``.
BINS = 20
_MAX_JOBS = 6
_CV = {"SM": "sm_util_cv", "memory": "mem_util_cv"}


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
    for law in laws(findings).to_dict("records"):
        if name := names.get(key(law)):
            at = np.geomspace(law["hours_min"], law["hours_max"], 9)
            ends = {end: law[column] * HOUR_S * at / size for end, column in _FACTOR.items()}
            lines.append(pd.DataFrame({"at": at, **ends, "line": name}))
    return pd.concat(lines[1:] or lines)


def constant_batch(findings: Findings, rule: str) -> Spec | None:
    rows = findings.unlimited_series
    rows = rows[rows["rule"] == rule]
    if rows.empty:
        return None
    quantities = [Quantity("time_s", TIME, log=True)]
    notes = [charts.SD_BARS]
    if rows["energy_j"].notna().any():
        quantities.append(energy_quantity(rows))
        notes.append(counted_note(findings))
    return against_workers(facet(rows), quantities, notes)


def growing_data(findings: Findings) -> Spec | None:
    rows = findings.series[findings.series["fraction_per_gpu"].notna()]
    if rows.empty:
        return None
    columns = [name for name in LINE_COLUMNS if name != "dataset_fraction"]
    facets = facet(without_limits(rows, ["family"]), line_by=columns)
    notes = ["Samples per epoch are in proportion to workers.", charts.SD_BARS]
    return against_workers(facets, [Quantity("time_s", TIME)], notes)


def variation_by_limit(findings: Findings, limit: Limit) -> Spec | None:
    rows = findings.series.dropna(subset=list(_CV.values()), how="all")
    facets = facets_by_limit(rows, limit)
    if facets.rows.empty:
        return None
    quantities = [
        Quantity(column, f"CV of {part} utilisation (%)", 100) for part, column in _CV.items()
    ]
    note = "CV is the standard deviation over the mean, over all samples of a run."
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


_VARIATION = "The larger the variation, the less evenly the GPUs are used."
FIGURES = (
    Figure(
        "gpu_hours", "Energy against GPU-hours", gpu_hours,
        "The axes are logarithmic: energy in proportion to GPU-hours is a line of slope 1.",
    ),
    Figure(
        "factor", "Power per GPU against samples and steps", factor,
        "Energy per GPU-hour is a mean power: all counted energy, divided by the GPUs.",
        is_extra=True,
    ),
    Figure(
        "strong_scaling", "Strong scaling: constant global batch",
        partial(constant_batch, rule="global_batch"),
        "More workers share the same global batch, so each has less work in a step.",
        is_extra=True,
    ),
    Figure(
        "constant_local_batch", "Constant local batch",
        partial(constant_batch, rule="local_batch"),
        "The global batch grows with the workers, so an epoch has fewer steps.",
        is_extra=True,
    ),
    Figure(
        "growing_data", "A data set that grows with N", growing_data,
        "The number of samples grows with the workers: a horizontal line is ideal.",
    ),
    Figure(
        "joint", "Joint utilisation", joint,
        "Colours show where the samples of both utilisations lie, at 2 and 128 workers, as in Frey "
        "et al. 2022, where both ran; else at the smallest and the largest count.",
    ),
    Figure(
        "variation_by_cap", "Variation of utilisation by power cap",
        partial(variation_by_limit, limit="power_limit_w"), _VARIATION,
    ),
    Figure(
        "variation_by_clock", "Variation of utilisation by SM clock",
        partial(variation_by_limit, limit="clock_limit_mhz"), _VARIATION,
    ),
)  # fmt: skip
