"""Batches: scaling at a constant batch, data sets that grow with N, and quality."""

import altair as alt
import pandas as pd

from wattlaw.analysis.batch_effects import FALLS, BatchQuality
from wattlaw.analysis.findings import Findings
from wattlaw.formatting import joules
from wattlaw.report.figures.axes import counts_axis, workers_axis
from wattlaw.report.figures.energy import BARS, counted
from wattlaw.report.figures.facets import (
    KIND,
    MOST_PANELS,
    arranged,
    beside,
    fixed_data,
    free,
    size_of,
    summarised,
)
from wattlaw.report.figures.labels import labels, short, short_all
from wattlaw.report.figures.parts import (
    Quantity,
    axis,
    curve,
    ends,
    level,
    panel,
    picture,
    side_by_side,
)
from wattlaw.report.figures.scaling import TIME
from wattlaw.report.theme import CHARACTER, look

_RULES = {"global_batch": "constant global batch", "local_batch": "constant local batch"}
_MOST_ROWS = 4


def strong_scaling(findings: Findings) -> alt.ConcatChart | None:
    """Time and energy per epoch against workers at constant global batch."""
    return _time_and_energy(findings, "global_batch", "Strong scaling: constant global batch")


def constant_local_batch(findings: Findings) -> alt.ConcatChart | None:
    """Time and energy per epoch against workers at constant local batch."""
    return _time_and_energy(findings, "local_batch", "Constant local batch")


def _time_and_energy(findings: Findings, rule: str, title: str) -> alt.ConcatChart | None:
    rows = free(fixed_data(findings.series))
    rows = rows[rows["rule"] == rule]
    if rows.empty:
        return None
    rows = rows.assign(energy_is=rows["energy_is"].fillna("no energy"))
    shown = arranged(rows, one_panel=True)
    quantities = [Quantity("epoch_time_s", TIME, log=True)]
    words = [f"points: means, {BARS}", shown.left_out]
    if rows["energy_per_epoch_j"].notna().any():
        size, unit = joules(rows["energy_per_epoch_j"])
        quantities.append(Quantity("energy_per_epoch_j", f"energy per epoch ({unit})", 1 / size))
        words.insert(1, counted(findings))
    return side_by_side(shown, quantities, title, words)


def growing_data(findings: Findings) -> alt.ConcatChart | None:
    """Time per epoch against workers where the data set grows with them."""
    rows = findings.series[findings.series["fraction_per_gpu"].notna()]
    if rows.empty:
        return None
    kind = [name for name in KIND if name != "dataset_fraction"]
    parts = {
        rule: arranged(free(rows[rows["rule"] == rule]), line_by=kind)
        for rule in reversed(_RULES)
        if (rows["rule"] == rule).any()
    }
    lines = list(dict.fromkeys(line for shown in parts.values() for line in shown.lines))
    count = sum(len(shown.panels) for shown in parts.values())
    width, height, columns = size_of(max(2, count))
    looks = look(lines, columns * width)
    panels = []
    for rule, shown in parts.items():
        table = beside(summarised(shown.rows, "epoch_time_s"), lines, width)
        for name in shown.panels:
            mine = shown.of(name, table)
            y, x = axis("mean", TIME, ends(mine), zero=True), workers_axis(mine["gpus"], width)
            title = short(", ".join(filter(None, (_RULES[rule], name))), int(width / CHARACTER))
            panels.append(panel(curve(mine, x, y, looks, TIME), title, width, height))
    words = ["samples per epoch in proportion to workers", f"points: means, {BARS}"]
    words += [shown.left_out for shown in parts.values()]
    return picture(panels, columns, "A data set that grows with N", words, columns * width)


def quality(findings: Findings) -> alt.ConcatChart | None:
    """Quality after the last epoch against global batch, with the batch beyond which it falls."""
    found = [row for row in findings.quality.rows if len(row.means) > 1]
    found = [row for row in found if len(row.means) > 2] or found
    if not found:
        return None
    shown = found[:MOST_PANELS]
    names = _names(found)[: len(shown)]
    width, height, columns = size_of(len(shown))
    looks = look([""])
    panels = []
    for name, row in zip(names, shown, strict=True):
        table = row.means.assign(
            low=row.means["mean"] - row.means["sd"], high=row.means["mean"] + row.means["sd"],
            at=row.means["global_batch"], gpus=row.means["n"], line="",
        )  # fmt: skip
        y = axis("mean", _metric(row), ends(table))
        x = counts_axis(table["at"], "global batch (samples per step)", width)
        layers = [] if row.falls_beyond is None else [level(row.falls_beyond, "x")]
        layers += curve(table, x, y, looks, "mean")
        panels.append(panel(layers, name, width, height, _verdict(row)))
    hidden = len(found) - len(shown)
    words = [
        f"points: means after the last epoch, {BARS}",
        "dashed: the largest batch at which no fall is seen"
        if any(row.verdict == FALLS for row in shown)
        else "",
        f"not shown: {hidden} more groups (see the tables)" if hidden else "",
    ]
    return picture(panels, columns, "Quality against global batch", words, columns * (width + 60))


def _names(rows: list[BatchQuality]) -> list[str]:
    groups = pd.DataFrame([row.group for row in rows])
    differing = [str(name) for name in groups if groups[name].nunique(dropna=False) > 1]
    names = labels(groups, differing)
    cut = short_all(names, 36)
    return [cut[name] for name in names]


def _metric(row: BatchQuality) -> str:
    """Return the metric's name; its unit is the workload's own."""
    share = row.means["mean"].between(0, 1).all()
    unit = "share" if share else "metric's own unit"
    return f"{short(str(row.group['metric_name'] or 'metric'), 16)} ({unit})"


def _verdict(row: BatchQuality) -> str:
    if row.verdict == FALLS:
        return f"falls beyond {row.falls_beyond}"
    return row.verdict
