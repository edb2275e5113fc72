"""Predictions of settings that were not measured."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from wattlaw.analysis.advice.option import Quantity
from wattlaw.analysis.prediction.job import BASELINE, Job
from wattlaw.analysis.prediction.results import Prediction
from wattlaw.analysis.prediction.settings import TrainingSetting
from wattlaw.analysis.result import Caution, Result
from wattlaw.api.display import as_html
from wattlaw.errors import BadInput
from wattlaw.formatting import (
    MISSING,
    duration_text,
    energy_text,
    estimate_text,
    limit_label,
    number,
    percent,
    plural,
)  # fmt: skip
from wattlaw.text import quote

_TIMES = {
    "train_time_s": "training", "epoch_time_s": "epoch", "time_per_sample_s": "sample",
    "step_time_s": "step",
}  # fmt: skip
_ALWAYS_SHOWN = ("GPUs", "time", "faster than baseline")


@dataclass(frozen=True)
class Predictions(Result):
    """Predictions, one for each setting and kind of hardware, with 90 % intervals.

    ``print(predictions)`` shows them with what they rest on. ``baselines`` are the settings that
    ``p_faster`` compares with, one for each kind of hardware.
    """

    rows_field = "rows"

    rows: tuple[Prediction, ...]
    baselines: tuple[TrainingSetting, ...]
    warnings: tuple[Caution, ...]

    @property
    def quantity(self) -> str:
        """The time that is shown: of a training, an epoch, a sample or a step."""
        return next(
            name for name in _TIMES if all(getattr(row, name) is not None for row in self.rows)
        )

    @property
    def title(self) -> str:
        """The title of the table."""
        return f"Predicted time of one {_TIMES[self.quantity]}, with 90 % intervals"

    def to_text_frame(self) -> pd.DataFrame:
        """Return the predictions as text; settings that are the same in all rows are left out."""
        texts = pd.DataFrame([self._cells(row) for row in self.rows])
        shown = [
            name
            for name in texts
            if name in _ALWAYS_SHOWN or ((texts[name] != MISSING).any()
            and (name not in ("nodes", "batch each", "cap", "clock", "hardware")
                 or texts[name].nunique() > 1))
        ]  # fmt: skip
        return texts[shown]

    @property
    def notes(self) -> tuple[str, ...]:
        """What the predictions rest on, and which measurement would narrow them most."""
        notes = []
        for hardware, baseline in zip(
            dict.fromkeys(row.hardware for row in self.rows), self.baselines, strict=True
        ):
            first = next(row for row in self.rows if row.hardware == hardware)
            basis = first.rests_on
            where = f"{hardware}: " if len(self.baselines) > 1 else ""
            gpus = ", ".join(map(str, basis.gpus))
            notes.append(
                f"{where}rests on {plural(basis.observations, 'run')} on {gpus} GPUs"
                + (f" and {', '.join(map(str, basis.nodes))} nodes." if basis.nodes else ".")
            )
            notes.append(f"{where}baseline: {_label(baseline)}.")
            needed = max(
                (row for row in self.rows if row.hardware == hardware),
                key=lambda row: row.gpus,
            ).next_measurement
            if needed is not None:
                notes.append(
                    f"{where}a measurement of {_label(needed.setting)} would narrow the intervals "
                    f"most, by {percent(1 - needed.interval_ratio, 2)}."
                )
        return tuple(notes)

    def __str__(self) -> str:
        lines = [self.title, self.to_text_frame().to_string(index=False), *self.notes]
        return "\n".join([*lines, *(f"Warning: {warning}" for warning in self.warnings)])

    def _repr_html_(self) -> str:
        lines = [*self.notes, *(f"Warning: {warning}" for warning in self.warnings), self.title]
        return as_html(self.to_text_frame(), lines)

    def _cells(self, row: Prediction) -> dict[str, str]:
        hours = _of(row, self.quantity)
        return {
            "hardware": row.hardware or MISSING,
            "GPUs": str(row.gpus),
            "nodes": MISSING if row.nodes is None else str(row.nodes),
            "batch each": number(row.local_batch),
            "cap": limit_label("power_limit_w", row.power_limit_w),
            "clock": limit_label("clock_limit_mhz", row.clock_limit_mhz),
            "time": duration_text(hours),
            "power per GPU": _text(estimate_text(_of(row, "power_per_gpu_w"), "W")),
            "energy per sample": _text(energy_text(_of(row, "energy_per_sample_j"))),
            "faster than baseline": percent(row.p_faster, 2),
            "bottleneck": row.bottleneck,
        }


def _of(row: Prediction, name: str) -> Quantity | None:
    value, bounds = getattr(row, name), getattr(row, f"{name}_ci")
    return None if value is None else Quantity(value, *bounds)


def _text(value: str) -> str:
    return value or MISSING


def _label(setting: TrainingSetting) -> str:
    parts = [plural(setting.gpus, "GPU")]
    if setting.nodes is not None:
        parts[0] += f" on {plural(setting.nodes, 'node')}"
    if setting.local_batch is not None:
        parts.append(f"batch {number(setting.local_batch)} each")
    for name in ("power_limit_w", "clock_limit_mhz"):
        value = getattr(setting, name)
        parts += [] if value is None else [limit_label(name, value)]
    return ", ".join(parts)


def baseline_values(value: str | Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the settings of a baseline such as ``"gpus=4,global_batch=256"``.

    Raises
    ------
    BadInput
        The text is not a list of settings and numbers.
    """
    if not isinstance(value, str):
        return value
    values: dict[str, Any] = {}
    for part in value.split(","):
        name, _, text = part.partition("=")
        name = name.strip()
        try:
            read = float(text)
        except ValueError:
            read = float("nan")
        if name not in BASELINE or not 0 < read < float("inf") or name in values:
            raise BadInput(
                f"baseline: given {quote(part)}; allowed: such as gpus=4,global_batch=256, with "
                f"{', '.join(BASELINE)}"
            )
        values[name] = int(read) if read.is_integer() else read
    return values


def predict_jobs(
    jobs: list[Job],
    baseline: Mapping[str, Any] | None,
    *,
    epochs: int | None,
    seed: int,
    **settings: Any,
) -> Predictions:
    """Return the predictions of all jobs: one for each kind of hardware."""
    rows: list[Prediction] = []
    baselines, warnings = [], list(jobs[0].warnings)
    for job in jobs:
        asked = job.settings(**settings)
        if not asked:
            raise BadInput("global_batch: no GPU count divides it; allowed: gpus that divide it")
        baselines.append(job.baseline(baseline))
        rows += job.predict(asked, baseline=baselines[-1], epochs=epochs, seed=seed)
    codes = dict.fromkeys(warning for row in rows for warning in row.warnings)
    return Predictions(tuple(rows), tuple(baselines), (*warnings, *codes))
