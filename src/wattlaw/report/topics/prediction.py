"""Predictions of settings: a table, what it rests on, how well it holds, and their figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from operator import attrgetter
from statistics import median
from typing import TYPE_CHECKING, Any

import pandas as pd

from wattlaw.analysis.advise.option import Quantity
from wattlaw.common import formatting as fmt
from wattlaw.report import charts, tables
from wattlaw.report.facets import MAX_PANELS, panel_size, unique_labels
from wattlaw.report.sections import Content, Parts
from wattlaw.report.topics.measured import worker_noun
from wattlaw.report.topics.scaling import TIME
from wattlaw.study.labels import LIMIT_UNITS, layout_label, limit_label

if TYPE_CHECKING:
    from wattlaw.analysis.findings import Findings
    from wattlaw.analysis.predict.intervals import Prediction
    from wattlaw.analysis.predict.workload_predictions import Overview, Predictions
    from wattlaw.report.charts import Spec
    from wattlaw.study.setting import Setting

#: The times of a prediction, by what they are of; the first that all rows have is shown.
_TIMES = {
    "training": "train_time_s",
    "epoch": "epoch_time_s",
    "sample": "time_per_sample_s",
    "step": "step_time_s",
}
_MOST_LISTED = 6
#: What a baseline is, by ``Predictions.baseline_is``.
_BASELINES = {
    "in use": ", which is what you run (decide.baseline)",
    "fastest": ", the fastest that ran",
}
#: Settings that have a column only where rows differ.
_SETTINGS = (
    tables.text("hardware", attrgetter("hardware")),
    tables.number("nodes", attrgetter("setting.nodes")),
    tables.number("batch each", attrgetter("setting.local_batch")),
    tables.text("precision", attrgetter("setting.precision")),
    tables.text("cap", lambda row: limit_label("power_limit_w", row.setting.power_limit_w)),
    tables.text("clock", lambda row: limit_label("clock_limit_mhz", row.setting.clock_limit_mhz)),
)
_LINE = "predicted"
_PARTS = ("compute", "communication", "input", "waiting")


def label(setting: Setting, worker: str = "GPU", *, among_others: bool = False) -> str:
    """Return ``8 GPUs on 2 nodes, batch 32 each, 200 W``."""
    parts = [fmt.plural(setting.gpus, worker)]
    if setting.nodes is not None and setting.nodes > 1:
        parts[0] += f" on {fmt.plural(setting.nodes, 'node')}"
    if setting.local_batch is not None:
        parts.append(f"batch {fmt.number(setting.local_batch)}{' each' * (setting.gpus > 1)}")
    if layout := layout_label(setting, among_others=among_others):
        parts.append(layout)
    if setting.precision not in (None, "fp32"):
        parts.append(str(setting.precision))
    limits = {name: getattr(setting, name) for name in LIMIT_UNITS}
    parts += [limit_label(name, value) for name, value in limits.items() if value is not None]
    return ", ".join(parts)


def table(predictions: Predictions) -> tables.Table | None:
    rows = predictions.rows
    of = next(
        (of for of, name in _TIMES.items() if all(getattr(row, name) is not None for row in rows)),
        "step",
    )
    differing = [each for each in _SETTINGS if len({each.value(row) for row in rows}) > 1]

    def quantity(row: Prediction, name: str) -> Quantity | None:
        value = getattr(row, name)
        return None if value is None else Quantity(value, *getattr(row, f"{name}_ci"))

    compared = [setting for _, setting in predictions.baselines]
    layouts = _layout_texts([*compared, *(row.setting for row in rows)])
    are_laid_out = any(map(layout_label, layouts))
    if predictions.has_layouts or (are_laid_out and len({*layouts.values()}) > 1):
        differing.append(tables.text("layout", lambda row: layouts[row.setting]))
    memory = [
        tables.Column(
            "peak memory",
            lambda row: fmt.estimate_text(quantity(row, "peak_memory_bytes"), "GiB", 2**30),
        ),
        tables.Column(
            "P(fits)",
            lambda row: "out of memory in a run" if row.out_of_memory else fmt.percent(row.fits, 2),
        ),
    ]
    columns = [
        tables.number(f"{predictions.worker}s", attrgetter("setting.gpus")),
        *differing,
        tables.Column("time", lambda row: fmt.duration_text(quantity(row, _TIMES[of]))),
        tables.Column(
            f"W per {predictions.worker}",
            lambda row: fmt.estimate_text(quantity(row, "power_per_gpu_w")),
        ),
        tables.Column(
            "energy per sample", lambda row: fmt.energy_text(quantity(row, "energy_per_sample_j"))
        ),
        tables.Column("P(faster)", lambda row: fmt.percent(row.p_faster, 2)),
        *(memory if any(row.peak_memory_bytes is not None for row in rows) else ()),
        tables.text("bottleneck", attrgetter("bottleneck")),
    ]
    title = f"Predicted time of one {of}, with 90 % intervals"
    return tables.build("predictions", title, columns, rows)


def _layout_texts(settings: Sequence[Setting]) -> dict[Setting, str]:
    """Return the whole layout of each setting; where some are sharded, those of copies that are
    not say so."""
    is_sharded = any(item.sharding != "none" for item in settings)
    texts = {}
    for item in settings:
        texts[item] = layout_label(item, among_others=True)
        if is_sharded and item.sharding == "none" and item.dp > 1:
            texts[item] += ", no sharding"
    return texts


def notes(predictions: Predictions) -> tuple[str, ...]:
    texts, worker = [], predictions.worker
    named = partial(label, worker=worker, among_others=predictions.has_layouts)
    for hardware, baseline in predictions.baselines:
        rows = [row for row in predictions.rows if row.hardware == hardware]
        basis = rows[0].rests_on
        where = f"{hardware}: " if len(predictions.baselines) > 1 else ""
        on = f"on {_listed(basis.gpus)} {worker}{'s' * (basis.gpus != (1,))}"
        if basis.nodes:
            on += f" and {_listed(basis.nodes)} {'node' if basis.nodes == (1,) else 'nodes'}"
        energy = f"; energy: {rows[0].energy_is}" if rows[0].energy_is else ""
        counted = fmt.plural(basis.observations, "observation")
        texts.append(f"{where}Rests on {counted} {on}{energy}.")
        why = _BASELINES.get(predictions.baseline_is, "")
        texts.append(f"{where}P(faster) is relative to {named(baseline)}{why}.")
    if predictions.machine_gpus:
        more = f"--gpus {2 * predictions.machine_gpus}"
        batch = predictions.rows[-1].setting.local_batch
        if batch is not None and batch == int(batch):
            more += f" --local-batch {batch:g}"
        texts.append(f"Shown are settings on the study's one machine; for two: {more}.")
    return tuple(texts)


def _listed(values: tuple[int, ...]) -> str:
    if len(values) > _MOST_LISTED:
        return f"{values[0]} to {values[-1]}"
    return ", ".join(map(str, values))


def build(content: Content) -> Parts:
    findings = content.findings
    checks = [check for overview in findings.predictions for check in overview.checks]
    if checks:
        error = median(abs(check.error) for check in checks)
        inside = sum(check.is_inside for check in checks)
        yield (
            f"From the runs on fewer {worker_noun(findings)}s, the model predicts the time on the "
            f"most with a median error of {fmt.percent(error, 2)}; {inside} of "
            f"{fmt.plural(len(checks), 'setting')} are in the 90 % interval."
        )
    yield from content.pictures
    yield check(findings)


def check(findings: Findings) -> tables.Table | None:
    rows = [(overview.job, check) for overview in findings.predictions for check in overview.checks]
    return tables.build(
        "prediction_check",
        f"The largest number of {worker_noun(findings)}s, predicted from the runs on fewer",
        [tables.text("workload", lambda row: row[0].workload), *checked(lambda job: job.unit)],
        rows,
        note="The model does not see these runs and predicts them. Nine in ten "
        "should be in the 90 % interval. Predictions beyond the runs are at least as uncertain.",
    )


def checked(unit_of: Callable[[Any], str]) -> list[tables.Column]:
    """Return columns of (job or decision, what was predicted of it and measured)."""

    def time_text(row: Any, seconds: Quantity | float) -> str:
        return f"{fmt.duration_text(seconds)} per {unit_of(row[0])}"

    return [
        tables.text("setting", lambda row: label(row[1].setting, row[0].worker)),
        tables.Column(
            "predicted",
            lambda row: time_text(row, Quantity(row[1].predicted_s, row[1].low_s, row[1].high_s)),
        ),
        tables.Column("measured", lambda row: time_text(row, row[1].measured_s)),
        tables.Column("error", lambda row: fmt.change(row[1].predicted_s / row[1].measured_s)),
        tables.text("in the interval", lambda row: "yes" if row[1].is_inside else "no"),
    ]


def curves(findings: Findings) -> Spec | None:
    notes = [
        "Line and band are the prediction with its 90 % interval, from all runs of the job.",
        "Points are runs at the same batch and limits.",
        "The dashed line is at the most GPUs of a run.",
    ]
    return _panels(findings, _curve_layers, notes)


def step_parts(findings: Findings) -> Spec | None:
    notes = [
        "Shares are medians of the prediction, at the batch and limits of most runs.",
        "Communication is the part that the backward pass does not hide.",
        "Waiting is the time until the slowest rank is done.",
    ]
    return _panels(findings, _bar_layers, notes)


def _panels(
    findings: Findings, layers_of: Callable[[Overview], Sequence[Spec]], notes: list[str]
) -> Spec | None:
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
    panels = []
    for title, item in zip(titles, shown, strict=True):
        first = item.curve[0].setting
        if first.local_batch is None:
            batch = "batch not known"
        elif len({row.setting.local_batch for row in item.curve}) == 1:
            batch = f"batch {first.local_batch:g} each"
        else:
            batch = f"batch {first.global_batch:g} in all"
        if item.shown is not None:
            batch += f", {layout_label(item.shown, among_others=True)}"
        panels.append(charts.panel(layers_of(item), names[title], width, height, batch))
    if any(item.shown for item in shown):
        notes = [*notes, "With parallel layouts, layout and batch are the recommended ones, "
                 "or those of the fastest runs."]  # fmt: skip
    notes = [*notes, charts.not_shown(len(overviews) - len(shown), "job")]
    return charts.figure(panels, columns, notes, columns * (width + 70))


def _curve_layers(overview: Overview) -> list[Spec]:
    job = overview.job
    name = _TIMES["training" if job.unit == "run" else job.unit]
    rows = [
        (row.setting.gpus, getattr(row, name), *getattr(row, f"{name}_ci"), _LINE)
        for row in overview.curve
    ]
    curve = pd.DataFrame(rows, columns=["at", "mean", "low", "high", "line"])
    measured = [(item.setting.gpus, job.unit_time_s(item)) for item in overview.measured]
    runs = pd.DataFrame(measured, columns=["at", "mean"])
    x = charts.counts_axis(curve["at"])
    values = [*charts.y_values(curve), *runs["mean"]]
    y = charts.y_axis("mean", TIME.format(unit=job.unit), values, log=True)
    styles = charts.line_styles([_LINE], points=False)
    return [
        charts.reference_line(max(item.gpus for item in job.settings), "x"),
        charts.band(curve, x, y, styles),
        charts.line(curve, x, y, styles, 1.8),
        charts.layer(runs, "point", {"x": x, "y": y}, color=charts.INK, size=34, opacity=1),
    ]


def _bar_layers(overview: Overview) -> list[Spec]:
    parts = pd.DataFrame([asdict(row.components) for row in overview.curve])
    shares = 100 * parts.div(parts.sum(axis=1), axis=0).rename(columns=lambda name: name[:-2])
    counts = [str(row.setting.gpus) for row in overview.curve]
    table = shares[[*_PARTS]].assign(gpus=counts).melt("gpus", var_name="part", value_name="share")
    table["order"] = table["part"].map(_PARTS.index)
    axis = {"labelAngle": 0, "labelOverlap": "greedy", "labelSeparation": charts.CHARACTER_WIDTH}
    part = charts.field("part", "nominal")
    encoding: Spec = {
        "x": charts.field("gpus", "nominal", sort=counts, title=charts.WORKERS, axis=axis),
        "y": charts.field("share", title="share of a step (%)", scale={"domain": [0, 100]}),
        "color": part
        | {
            "scale": {"domain": list(_PARTS), "range": charts.COLOURS[:4]},
            "legend": {"title": None, "orient": "bottom", "columns": 4},
        },
        "order": charts.field("order"),
        "tooltip": [part, charts.field("share", title="share (%)")],
    }
    return [charts.layer(table, "bar", encoding)]
