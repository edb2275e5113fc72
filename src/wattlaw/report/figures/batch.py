"""Batches: scaling at a constant batch, data sets that grow with N, and quality."""

import altair as alt
import pandas as pd

from wattlaw.analysis.batch_effects import FALLS, BatchQuality
from wattlaw.analysis.findings import Findings
from wattlaw.formatting import JOULE_UNITS, choose_unit, plural
from wattlaw.report.figures.axes import counts_axis, workers_axis, y_axis
from wattlaw.report.figures.energy import counted_note
from wattlaw.report.figures.facets import (
    LINE_COLUMNS,
    MAX_PANELS,
    dodge,
    facet,
    fixed_dataset,
    mean_and_sd,
    panel_size,
    without_limits,
)
from wattlaw.report.figures.labels import row_labels, shorten_middle, unique_labels
from wattlaw.report.figures.parts import (
    SD_BARS,
    Quantity,
    concat,
    curve,
    panel,
    reference_line,
    side_by_side,
    y_values,
)
from wattlaw.report.figures.scaling import TIME
from wattlaw.report.theme import CHARACTER_WIDTH, line_styles

_RULES = {"local_batch": "constant local batch", "global_batch": "constant global batch"}


def constant_batch(findings: Findings, rule: str) -> alt.ConcatChart | None:
    """Draw time and energy per epoch against workers at constant global or local batch."""
    rows = without_limits(fixed_dataset(findings.series))
    rows = rows[rows["rule"] == rule]
    if rows.empty:
        return None
    quantities = [Quantity("epoch_time_s", TIME, log=True)]
    notes = [f"points: means, {SD_BARS}"]
    if rows["energy_per_epoch_j"].notna().any():
        size, unit = choose_unit(rows["energy_per_epoch_j"], JOULE_UNITS)
        quantities.append(Quantity("energy_per_epoch_j", f"energy per epoch ({unit})", 1 / size))
        notes.append(counted_note(findings))
    return side_by_side(facet(rows), quantities, notes)


def growing_data(findings: Findings) -> alt.ConcatChart | None:
    """Draw time per epoch against workers where the data set grows with them."""
    rows = findings.series[findings.series["fraction_per_gpu"].notna()]
    if rows.empty:
        return None
    columns = [name for name in LINE_COLUMNS if name != "dataset_fraction"]
    by_rule = {
        rule: facet(without_limits(rows[rows["rule"] == rule]), line_by=columns)
        for rule in _RULES
        if (rows["rule"] == rule).any()
    }
    lines = list(dict.fromkeys(line for facets in by_rule.values() for line in facets.lines))
    panel_count = sum(len(facets.panels) for facets in by_rule.values())
    width, height, columns_count = panel_size(max(2, panel_count))
    styles = line_styles(lines, columns_count * width)
    panels = []
    for rule, facets in by_rule.items():
        table = dodge(mean_and_sd(facets.rows, "epoch_time_s"), lines, width)
        for name in facets.panels:
            rows = facets.panel_rows(name, table)
            y = y_axis("mean", TIME, y_values(rows), zero=True)
            title = ", ".join(filter(None, (_RULES[rule], name)))
            title = shorten_middle(title, int(width / CHARACTER_WIDTH))
            layers = curve(rows, workers_axis(rows["gpus"]), y, styles, TIME)
            panels.append(panel(layers, title, width, height))
    notes = ["samples per epoch in proportion to workers", f"points: means, {SD_BARS}"]
    notes += [facets.omitted for facets in by_rule.values()]
    return concat(panels, columns_count, notes, columns_count * width)


def quality(findings: Findings) -> alt.ConcatChart | None:
    """Draw quality after the last epoch against global batch, and where it starts to fall."""
    several = [row for row in findings.quality.rows if len(row.means) > 1]
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
        y = y_axis("mean", _metric(row), y_values(table))
        x = counts_axis(table["at"], "global batch (samples per step)")
        layers = [] if row.falls_beyond is None else [reference_line(row.falls_beyond, "x")]
        layers += curve(table, x, y, line_styles([""]), "mean")
        verdict = f"falls beyond {row.falls_beyond}" if row.verdict == FALLS else row.verdict
        panels.append(panel(layers, name, width, height, verdict))
    hidden = len(rows) - len(shown)
    notes = [
        f"points: means after the last epoch, {SD_BARS}",
        "dashed: the largest batch without a fall"
        if any(row.verdict == FALLS for row in shown)
        else "",
        f"not shown: {plural(hidden, 'more group')} (see the tables)" if hidden else "",
    ]
    return concat(panels, columns, notes, columns * (width + 60))


def _names(rows: list[BatchQuality]) -> list[str]:
    groups = pd.DataFrame([row.group for row in rows])
    differing = [str(name) for name in groups if groups[name].nunique(dropna=False) > 1]
    names = row_labels(groups, differing)
    short = unique_labels(names, 36)
    return [short[name] for name in names]


def _metric(row: BatchQuality) -> str:
    """Return the title of the metric's axis."""
    unit = "share" if row.means["mean"].between(0, 1).all() else "metric's own unit"
    return f"{shorten_middle(str(row.group['metric_name'] or 'metric'), 16)} ({unit})"
