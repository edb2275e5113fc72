"""Predictions of settings as text: a table, and what it rests on."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from statistics import median
from typing import TYPE_CHECKING

from wattlaw.analysis.advise.option import Quantity
from wattlaw.common import formatting as fmt
from wattlaw.report import tables
from wattlaw.report.topics.measured import worker_noun

if TYPE_CHECKING:
    from wattlaw.analysis.findings import Findings
    from wattlaw.analysis.predict.job import Job, Predictions
    from wattlaw.analysis.predict.overview import Check
    from wattlaw.analysis.predict.results import Prediction
    from wattlaw.study.setting import Setting

#: The times of a prediction; the first that all rows have is shown.
_TIMES = {
    "train_time_s": "training", "epoch_time_s": "epoch", "time_per_sample_s": "sample",
    "step_time_s": "step",
}  # fmt: skip
_MOST_LISTED = 6
#: Settings that have a column only where rows differ.
_SETTINGS = {
    "hardware": tables.text("hardware", attrgetter("hardware")),
    "nodes": tables.number("nodes", attrgetter("setting.nodes")),
    "local_batch": tables.number("batch each", attrgetter("setting.local_batch")),
    "precision": tables.text("precision", attrgetter("setting.precision")),
    "power_limit_w": tables.text(
        "cap", lambda row: fmt.limit_label("power_limit_w", row.setting.power_limit_w)
    ),
    "clock_limit_mhz": tables.text(
        "clock", lambda row: fmt.limit_label("clock_limit_mhz", row.setting.clock_limit_mhz)
    ),
}


def table(predictions: Predictions) -> tables.Table | None:
    """Return the predictions with their 90 % intervals."""
    rows = predictions.rows
    time = next(
        (name for name in _TIMES if all(getattr(row, name) is not None for row in rows)),
        "step_time_s",
    )
    differing = [
        name
        for name in _SETTINGS
        if len({row.hardware if name == "hardware" else getattr(row.setting, name) for row in rows})
        > 1
    ]
    columns = [
        tables.number("GPUs", attrgetter("setting.gpus")),
        *(_SETTINGS[name] for name in differing),
        tables.Column("time", lambda row: fmt.duration_text(_quantity(row, time))),
        tables.Column("W per GPU",
                      lambda row: fmt.estimate_text(_quantity(row, "power_per_gpu_w"))),
        tables.Column("energy per sample",
                      lambda row: fmt.energy_text(_quantity(row, "energy_per_sample_j"))),
        tables.Column("P(faster)", lambda row: fmt.percent(row.p_faster, 2)),
        tables.text("bottleneck", attrgetter("bottleneck")),
    ]  # fmt: skip
    title = f"Predicted time of one {_TIMES[time]}, with 90 % intervals"
    return tables.build("predictions", title, columns, rows)


def notes(predictions: Predictions) -> tuple[str, ...]:
    """Return what the predictions rest on, and the measurement that would narrow them most."""
    texts = []
    for hardware, baseline in predictions.baselines:
        rows = [row for row in predictions.rows if row.hardware == hardware]
        basis, needed = rows[0].rests_on, rows[-1].next_measurement
        where = f"{hardware}: " if len(predictions.baselines) > 1 else ""
        on = f"on {_listed(basis.gpus)} GPUs"
        if basis.nodes:
            on += f" and {_listed(basis.nodes)} {'node' if basis.nodes == (1,) else 'nodes'}"
        energy = f"; energy: {rows[0].energy_is}" if rows[0].energy_is else ""
        counted = fmt.plural(basis.observations, "observation")
        texts.append(f"{where}Rests on {counted} {on}{energy}.")
        texts.append(f"{where}P(faster) is relative to {label(baseline)}.")
        if needed is not None:
            texts.append(
                f"{where}A measurement of {label(needed.setting)} is expected to narrow the "
                f"intervals by {fmt.percent(1 - needed.interval_ratio, 2)}."
            )
    return tuple(texts)


def check(findings: Findings) -> tables.Table | None:
    """Return the check of each job: the most GPUs, predicted from the runs on fewer."""
    rows = [(overview.job, check) for overview in findings.predictions for check in overview.checks]

    def time_text(row: tuple[Job, Check], *bounds: float) -> str:
        quantity = Quantity(bounds[0], *bounds[1:]) if len(bounds) > 1 else bounds[0]
        return f"{fmt.duration_text(quantity)} per {row[0].unit}"

    columns = [
        tables.text("workload", lambda row: row[0].workload),
        tables.text("setting", lambda row: label(row[1].setting)),
        tables.Column("measured", lambda row: time_text(row, row[1].measured_s)),
        tables.Column(
            "predicted", lambda row: time_text(row, row[1].predicted_s, row[1].low_s, row[1].high_s)
        ),
        tables.Column("error", lambda row: fmt.change(1 + row[1].error)),
        tables.text("in the interval", lambda row: "yes" if row[1].is_inside else "no"),
    ]
    return tables.build(
        "prediction_check",
        f"The most {worker_noun(findings)}s, predicted from the runs on fewer",
        columns,
        rows,
        note="The model does not see these runs and predicts them. Nine in ten "
        "should be in the 90 % interval. Predictions beyond the runs are as uncertain at least.",
    )


def sentences(findings: Findings) -> Iterator[str]:
    """Yield how well the most GPUs are predicted from the runs on fewer."""
    noun = worker_noun(findings)
    checks = [check for overview in findings.predictions for check in overview.checks]
    if checks:
        error = median(abs(check.error) for check in checks)
        inside = sum(check.is_inside for check in checks)
        yield (
            f"From the runs on fewer {noun}s, the model predicts the time on the most with a "
            f"median error of {fmt.percent(error, 2)}; {inside} of "
            f"{fmt.plural(len(checks), 'setting')} are in the 90 % interval."
        )


def _quantity(row: Prediction, name: str) -> Quantity | None:
    value, bounds = getattr(row, name), getattr(row, f"{name}_ci")
    return None if value is None else Quantity(value, *bounds)


def _listed(values: tuple[int, ...]) -> str:
    if len(values) > _MOST_LISTED:
        return f"{values[0]} to {values[-1]}"
    return ", ".join(map(str, values))


def label(setting: Setting, worker: str = "GPU") -> str:
    """Return ``8 GPUs on 2 nodes, batch 32 each, 200 W``."""
    parts = [fmt.plural(setting.gpus, worker)]
    if setting.nodes is not None:
        parts[0] += f" on {fmt.plural(setting.nodes, 'node')}"
    if setting.local_batch is not None:
        parts.append(f"batch {fmt.number(setting.local_batch)} each")
    if setting.precision not in (None, "fp32"):
        parts.append(str(setting.precision))
    for name in fmt.LIMIT_UNITS:
        value = getattr(setting, name)
        parts += [] if value is None else [fmt.limit_label(name, value)]
    return ", ".join(parts)
