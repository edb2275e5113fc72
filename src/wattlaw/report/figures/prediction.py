"""Predicted time against GPUs, with measured points, and the parts of a step."""

from collections.abc import Callable, Sequence
from dataclasses import asdict

import altair as alt
import pandas as pd

from wattlaw.analysis.findings import Findings
from wattlaw.analysis.predict.overview import Overview
from wattlaw.report.figures import parts
from wattlaw.report.figures.facets import MAX_PANELS, panel_size
from wattlaw.report.figures.labels import unique_labels
from wattlaw.report.figures.scaling import TIME
from wattlaw.report.theme import CHARACTER_WIDTH, COLOURS, INK, Spec, line_styles

#: The time of a prediction, by the unit of the job.
_TIMES = {
    "epoch": "epoch_time_s", "sample": "time_per_sample_s", "step": "step_time_s",
    "run": "train_time_s",
}  # fmt: skip
_LINE = "predicted"
_Layers = Callable[[Overview], Sequence[alt.Chart]]
_PARTS = ("compute", "communication", "input", "waiting")


def curves(findings: Findings) -> Spec | None:
    """Draw the predicted time of a unit against GPUs with its 90 % interval, and the runs."""
    notes = [
        "Line and band are the prediction with its 90 % interval, from all runs of the job.",
        "Points are runs at the same batch and limits.",
        "The dashed line is at the most GPUs of a run.",
    ]
    return _panels(findings, _curve_layers, notes)


def step_parts(findings: Findings) -> Spec | None:
    """Draw the share of compute, communication, input and waiting in a step, by GPU count."""
    notes = [
        "Shares are medians of the prediction, at the batch and limits of most runs.",
        "Communication is the part that the backward pass does not hide.",
        "Ranks wait for the slowest.",
    ]
    return _panels(findings, _bar_layers, notes)


def _panels(findings: Findings, layers_of: _Layers, notes: list[str]) -> Spec | None:
    overviews = [item for item in findings.predictions if len(item.curve) > 1]
    if not overviews:
        return None
    shown = overviews[:MAX_PANELS]
    several = len({item.job.hardware for item in shown}) > 1
    titles = [
        f"{item.job.workload}, {item.job.hardware}" if several else item.job.workload
        for item in shown
    ]
    names = unique_labels(titles, 36)
    width, height, columns = panel_size(len(shown))
    panels = [
        parts.panel(layers_of(item), names[title], width, height, _batch(item))
        for title, item in zip(titles, shown, strict=True)
    ]
    notes = [*notes, parts.not_shown(len(overviews) - len(shown), "job")]
    return parts.concat(panels, columns, notes, columns * (width + 70))


def _batch(overview: Overview) -> str:
    """Return what the settings of a curve have in common."""
    first = overview.curve[0].setting
    batches = {row.setting.local_batch for row in overview.curve}
    if first.local_batch is None:
        return "batch not known"
    if len(batches) == 1:
        return f"batch {first.local_batch:g} each"
    return f"batch {first.global_batch:g} in all"


def _curve_layers(overview: Overview) -> list[alt.Chart]:
    unit = overview.job.unit
    name = _TIMES[unit]
    rows = [
        (row.setting.gpus, getattr(row, name), *getattr(row, f"{name}_ci"))
        for row in overview.curve
    ]
    curve = pd.DataFrame(rows, columns=["at", "mean", "low", "high"]).assign(line=_LINE)
    measured = [(item.setting.gpus, overview.job.unit_time_s(item)) for item in overview.measured]
    runs = pd.DataFrame(measured, columns=["at", "mean"])
    x = parts.counts_axis(curve["at"])
    y = parts.y_axis("mean", TIME.format(unit=unit), [*parts.y_values(curve), *runs["mean"]],
                     log=True)  # fmt: skip
    styles = line_styles([_LINE], points=False)
    points = alt.Chart(parts.compact(runs, "at", "mean")).mark_point(color=INK, size=34, opacity=1)
    most = max(item.gpus for item in overview.job.settings)
    return [
        parts.reference_line(most, "x"),
        parts.band(curve, x, y, styles),
        parts.line(curve, x, y, styles, 1.8),
        points.encode(x=x, y=y),
    ]


def _bar_layers(overview: Overview) -> list[alt.Chart]:
    rows = []
    for row in overview.curve:
        seconds = {name.removesuffix("_s"): value for name, value in asdict(row.components).items()}
        total = sum(seconds.values())
        rows += [
            {"gpus": str(row.setting.gpus), "part": name, "share": 100 * seconds[name] / total,
             "order": _PARTS.index(name)}
            for name in _PARTS
        ]  # fmt: skip
    table = pd.DataFrame(rows)
    counts = list(dict.fromkeys(table["gpus"]))
    colours = alt.Scale(domain=list(_PARTS), range=COLOURS[:4])
    axis = alt.Axis(labelAngle=0, labelOverlap="greedy", labelSeparation=CHARACTER_WIDTH)
    bars = alt.Chart(parts.compact(table, "gpus", "part", "share", "order")).mark_bar()
    return [
        bars.encode(
            x=alt.X("gpus:N", sort=counts, title=parts.WORKERS, axis=axis),
            y=alt.Y("share:Q", title="share of a step (%)", scale=alt.Scale(domain=[0, 100])),
            color=alt.Color(
                "part:N", scale=colours, legend=alt.Legend(title=None, orient="bottom", columns=4)
            ),
            order="order:Q",
            tooltip=[alt.Tooltip("part:N"), alt.Tooltip("share:Q", title="share (%)")],
        )
    ]
