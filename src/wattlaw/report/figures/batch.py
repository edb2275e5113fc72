"""Batches: scaling at a constant batch, growing data sets, quality, and epochs to a target."""

import pandas as pd

from wattlaw.analysis.findings import Findings
from wattlaw.analysis.laws.batch_effects import FALLS, BatchQuality
from wattlaw.report.figures import parts
from wattlaw.report.figures.energy import counted_note, energy_quantity
from wattlaw.report.figures.facets import (
    LINE_COLUMNS,
    MAX_PANELS,
    facet,
    fixed_dataset,
    panel_size,
    without_limits,
)
from wattlaw.report.figures.labels import row_labels, shorten_middle, unique_labels
from wattlaw.report.figures.scaling import TIME
from wattlaw.report.theme import Spec, line_styles


def constant_batch(findings: Findings, rule: str) -> Spec | None:
    """Draw time and energy per unit against workers at constant global or local batch."""
    rows = without_limits(fixed_dataset(findings.series))
    rows = rows[rows["rule"] == rule]
    if rows.empty:
        return None
    quantities = [parts.Quantity("time_s", TIME, log=True)]
    notes = [parts.SD_BARS]
    if rows["energy_j"].notna().any():
        quantities.append(energy_quantity(rows))
        notes.append(counted_note(findings))
    return parts.against_workers(facet(rows), quantities, notes)


def growing_data(findings: Findings) -> Spec | None:
    """Draw time per unit against workers where the data set grows with them."""
    rows = findings.series[findings.series["fraction_per_gpu"].notna()]
    if rows.empty:
        return None
    columns = [name for name in LINE_COLUMNS if name != "dataset_fraction"]
    facets = facet(without_limits(rows), line_by=columns)
    notes = ["Samples per epoch are in proportion to workers.", parts.SD_BARS]
    return parts.against_workers(facets, [parts.Quantity("time_s", TIME)], notes)


def quality(findings: Findings) -> Spec | None:
    """Draw quality after the last epoch against global batch, and where it starts to fall."""
    several = [row for row in findings.quality if len(row.means) > 1]
    rows = [row for row in several if len(row.means) > 2] or several
    if not rows:
        return None
    shown = rows[:MAX_PANELS]
    width, height, columns = panel_size(len(shown))
    panels = []
    for name, row in zip(_names(rows), shown, strict=False):
        table = row.means.assign(
            low=row.means["mean"] - row.means["sd"], high=row.means["mean"] + row.means["sd"],
            at=row.means["global_batch"], gpus=row.means["n"], line="",
        )  # fmt: skip
        metric = shorten_middle(str(row.group["metric_name"] or "metric"), 16)
        unit = "share" if row.means["mean"].between(0, 1).all() else "metric's own unit"
        y = parts.y_axis("mean", f"{metric} ({unit})", parts.y_values(table))
        x = parts.counts_axis(table["at"], "global batch (samples per step)")
        layers = [] if row.falls_beyond is None else [parts.reference_line(row.falls_beyond, "x")]
        layers += parts.curve(table, x, y, line_styles([""]), "mean")
        verdict = f"falls beyond {row.falls_beyond}" if row.verdict == FALLS else row.verdict
        panels.append(parts.panel(layers, name, width, height, verdict))
    falls = any(row.verdict == FALLS for row in shown)
    dashed = "The dashed line marks the largest batch before the metric falls." if falls else ""
    notes = [parts.SD_BARS, dashed, parts.not_shown(len(rows) - len(shown), "group")]
    return parts.concat(panels, columns, notes, columns * (width + 60))


def _names(rows: list[BatchQuality]) -> list[str]:
    groups = pd.DataFrame([row.group for row in rows])
    differing = [str(name) for name in groups if groups[name].nunique(dropna=False) > 1]
    names = row_labels(groups, differing)
    short = unique_labels(names, 36)
    return [short[name] for name in names]
