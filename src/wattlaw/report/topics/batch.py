"""Batch effects: quality against global batch, and time and energy at a constant batch."""

from collections.abc import Iterator, Sequence

import pandas as pd

from wattlaw.analysis.findings import Findings
from wattlaw.analysis.laws.batch_effects import CANNOT_TELL, FALLS, NO_FALL, BatchQuality
from wattlaw.analysis.laws.limit_effects import without_limits
from wattlaw.common import formatting as fmt
from wattlaw.report import charts, tables
from wattlaw.report.charts import Spec
from wattlaw.report.facets import (
    LINE_COLUMNS,
    MAX_PANELS,
    Quantity,
    against_workers,
    facet,
    panel_size,
    row_labels,
    shorten_middle,
    unique_labels,
)
from wattlaw.report.sections import Content, Parts
from wattlaw.report.topics.energy import counted_note, energy_quantity
from wattlaw.report.topics.scaling import TIME


def means(findings: Findings) -> tables.Table | None:
    rows = [
        {"label": name, **row}
        for name, quality in zip(_names(findings.quality), findings.quality, strict=True)
        for row in quality.means.to_dict("records")
    ]
    return tables.build(
        "batch_means",
        "Quality after the last epoch, by global batch",
        [
            tables.text("runs of", "label"),
            tables.number("global batch", "global_batch", 9),
            tables.number("repeats", "n"),
            tables.number("mean", "mean", 4),
            tables.number("SD", "sd", 2),
            tables.number("worse than the best by", "worse_by", 2),
            tables.interval("95 % interval", "worse_by", 2),
            tables.Column("p of being the best", lambda row: fmt.p_value(row["p_value"])),
            tables.text("verdict", "verdict"),
        ],
        rows,
    )


def build(content: Content) -> Parts:
    findings = content.findings
    if findings.has_quality:
        yield from _sentences(findings)
        yield from content.pictures
        yield means(findings)
    elif findings.origins_label:
        yield f"{findings.origins_label.capitalize()} runs have no accuracy."
    else:
        yield "The runs were not evaluated, so their quality is not known."


def _sentences(findings: Findings) -> Iterator[str]:
    rows = [row for row in findings.quality if len(row.means)]
    names = _names(rows)
    for verdict in (FALLS, NO_FALL):
        for name, row in zip(names, rows, strict=True):
            if row.verdict == verdict:
                yield f"{name}: {fmt.full_stop(row.sentence)}"
    undecided = sum(row.verdict == CANNOT_TELL for row in rows)
    if undecided:
        yield (
            "The data cannot tell whether quality falls with the global batch for "
            f"{undecided} of {fmt.plural(len(rows), 'group')} of runs; the table has the reasons."
        )


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


def quality(findings: Findings) -> Spec | None:
    several = [row for row in findings.quality if len(row.means) > 1]
    rows = [row for row in several if len(row.means) > 2] or several
    if not rows:
        return None
    shown = rows[:MAX_PANELS]
    width, height, columns = panel_size(len(shown))
    panels = []
    names = _names(rows)
    short = unique_labels(names, 36)
    for name, row in zip(names, shown, strict=False):
        mean, sd = row.means["mean"], row.means["sd"]
        table = row.means.assign(
            low=mean - sd, high=mean + sd, at=row.means["global_batch"], gpus=row.means["n"],
            line="",
        )  # fmt: skip
        metric = shorten_middle(str(row.group["metric_name"] or "metric"), 16)
        unit = "share" if mean.between(0, 1).all() else "metric's own unit"
        y = charts.y_axis("mean", f"{metric} ({unit})", charts.y_values(table))
        x = charts.counts_axis(table["at"], "global batch (samples per step)")
        layers = []
        if row.falls_beyond is not None:
            layers.append(charts.reference_line(row.falls_beyond, "x"))
        layers += charts.curve(table, x, y, charts.line_styles([""]), "mean")
        verdict = f"falls beyond {row.falls_beyond}" if row.verdict == FALLS else row.verdict
        panels.append(charts.panel(layers, short[name], width, height, verdict))
    falls = any(row.verdict == FALLS for row in shown)
    dashed = "The dashed line marks the largest batch before the metric falls." if falls else ""
    notes = [charts.SD_BARS, dashed, charts.not_shown(len(rows) - len(shown), "group")]
    return charts.figure(panels, columns, notes, columns * (width + 60))


def _names(rows: Sequence[BatchQuality]) -> list[str]:
    """Return the workload of each group of runs, and what differs between the groups."""
    if not rows:
        return []
    groups = pd.DataFrame([row.group for row in rows])
    others = groups.drop(columns="workload")
    differing = others.columns[others.nunique(dropna=False) > 1]
    return list(row_labels(groups, ["workload", *differing]))
