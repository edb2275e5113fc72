"""Measurements from elsewhere as runs of a store: each row of a table becomes one run.

What a table does not say is missing in the run, or noted where a run must have a value.
"""

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from wattlaw.store.fields import OPTIONS, STEP_PARTS, FieldMap, InvalidCell, global_batch_of
from wattlaw.store.imports import ImportedRun, RejectedRow
from wattlaw.store.record import Facts, RunRecord
from wattlaw.store.rows import Row
from wattlaw.study.identity import ID_DIGITS, canonical
from wattlaw.study.model import Measure, RunSpec, Setting, WorkloadSpec

#: The launcher of an imported run; no launcher of this name exists.
KIND = "imported"
HOST = "imported"
#: The option that keeps a workload's original name where it is not a valid workload name.
_NAME_OPTION = "workload"
_NOT_CHECKED = "measured elsewhere, not checked here"
_ENERGIES = ("gpu_energy_j", "cpu_energy_j", "dram_energy_j")
_SPEC_FIELDS = (*Setting.model_fields, "workload", "hardware", "nodes", "repeat", "epochs")
#: The values of a run where a table does not say them.
_ASSUMED = {"precision": "fp32", "dataset_fraction": "1", "nodes": "1"}


def parse_runs(
    rows: Iterable[Row], fields: FieldMap, source: str, study: str
) -> tuple[list[ImportedRun], list[RejectedRow]]:
    """Return the runs of a table, and the rows that cannot be imported.

    Rows of the same setting are numbered as its repeats in their order, rejected ones included,
    unless the field ``repeat`` gives the number. ``source`` is the name of the file; file, setting
    and repeat identify a run. A workload that the table does not name has the name of the study.
    """
    runs: list[ImportedRun] = []
    rejected: list[RejectedRow] = []
    repeats: Counter[str] = Counter()
    lines: dict[str, int] = {}
    is_numbered = "repeat" in {*fields.columns, *fields.constants}
    for row in rows:
        try:
            if row.fault is not None:
                raise InvalidCell(row.fault)
            values = fields.parse_row(row.cells, _is_spec_field)
            spec = _spec(values, fields, study)
            if not is_numbered:
                setting = canonical(spec)
                spec = spec.model_copy(update={"repeat": repeats[setting]})
                repeats[setting] += 1
            run_id = identity(spec, source)
            train, evaluate, metric = _windows(row, fields, spec)
            if run_id in lines:
                raise InvalidCell(f"has the setting and repeat of line {lines[run_id]}")
        except InvalidCell as error:
            rejected.append(RejectedRow(row.line, str(error)))
            continue
        lines[run_id] = row.line
        record = RunRecord(
            run_id=run_id,
            study=study,
            spec=spec,
            seed=0,
            order_seed=0,
            status="done",
            notes=_notes(source, values, spec),
            facts=Facts(metric=metric),
        )
        windows = _rows(record, train, evaluate)
        runs.append(ImportedRun(record, windows, line=row.line))
    return runs, rejected


def identity(spec: RunSpec, source: str) -> str:
    """Return the run id of an imported run, a hash of its specification and its file's name."""
    text = json.dumps([canonical(spec), source])
    return hashlib.sha256(text.encode()).hexdigest()[:ID_DIGITS]


def slug(text: str) -> str:
    """Return a text as a name of letters, digits, '.', '_' and '-'; it may be empty."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).lstrip("._-")[:100].rstrip("-")


def _rows(
    record: RunRecord, train: Mapping[str, Any], evaluate: Mapping[str, Any] | None
) -> list[dict[str, Any]]:
    """Return the windows of the epochs, which are all equal, and of the evaluation after them."""
    measure = record.spec.measure
    count = measure.epoch_count or 1
    shared = {"run_id": record.run_id, "host": HOST, "warmup": False}
    shared |= {"interrupted": False, "from_step": 0}
    train = {**shared, "phase": "steps" if measure.is_by_steps else "train", **train}
    rows = [{**train, "epoch": epoch} for epoch in range(count)]
    if evaluate is not None:
        rows.append({**shared, "phase": "evaluate", "epoch": count - 1, **evaluate})
    return rows


def _is_spec_field(name: str) -> bool:
    return name in _SPEC_FIELDS or name.startswith(OPTIONS)


def _spec(values: Mapping[str, Any], fields: FieldMap, study: str) -> RunSpec:
    for name in ("gpus", "workload", "repeat"):
        if name in fields.columns and name not in values:
            raise InvalidCell(f"{name} is missing")
    batch = global_batch_of(values)
    setting = {key: values[key] for key in Setting.model_fields if key in values}
    setting |= {"global_batch": batch, "local_batch": batch // values["gpus"]} if batch else {}
    name = values.get("workload", study)
    options = {key.removeprefix(OPTIONS): v for key, v in values.items() if key.startswith(OPTIONS)}
    if slug(name) != name:
        if _NAME_OPTION in options:
            raise InvalidCell(f"options.{_NAME_OPTION} is reserved for the workload's full name")
        options[_NAME_OPTION] = name
    measure = Measure(epochs=values.get("epochs", 1), warmup_epochs=0)
    if fields.has("step_time_s"):
        measure = Measure(epochs=None, warmup_epochs=0, steps=1, warmup_steps=0)
    try:
        return RunSpec(
            workload=WorkloadSpec(name=slug(name) or KIND, options=options),
            setting=Setting(**setting),
            repeat=values.get("repeat", 0),
            measure=measure,
            launch_kind=KIND,
            hardware=values.get("hardware"),
            nodes=values.get("nodes", 1),
        )
    except ValidationError as error:
        raise InvalidCell(error.errors()[0]["msg"]) from None


def _windows(
    row: Row, fields: FieldMap, spec: RunSpec
) -> tuple[dict[str, Any], dict[str, Any] | None, str | None]:
    """Return the training window, the evaluation's, and the name of the metric."""
    values = fields.parse_row(row.cells, lambda name: not _is_spec_field(name))
    is_by_steps = spec.measure.is_by_steps
    time_field = "step_time_s" if is_by_steps else "epoch_time_s"
    time_s = values.get(time_field)
    if time_s is None:
        raise InvalidCell(f"{time_field} is missing")
    parts_s = {name: values.get(name) for name in STEP_PARTS}
    if math.fsum(value or 0.0 for value in parts_s.values()) > time_s:
        raise InvalidCell(f"{', '.join(STEP_PARTS)} add up to more than {time_field}")
    train = {
        "duration_s": time_s,
        "samples": spec.setting.global_batch if is_by_steps else values.get("samples"),
        "steps": 1 if is_by_steps else values.get("steps"),
        **parts_s,
        **_energy(values, time_s, spec.setting.gpus),
    }
    for name in ("sm_util", "mem_util"):
        percent = values.get(f"{name}_percent")
        train[f"{name}_mean"] = values.get(name) if percent is None else percent / 100
    evaluate = {"duration_s": values.get("eval_time_s")}
    evaluate |= {name: values.get(name) for name in ("metric", "loss")}
    if all(value is None for value in evaluate.values()):
        return train, None, None
    evaluate |= {"energy_source": "none", "energy_verdict": "unavailable"}
    return train, evaluate, values.get("metric_name")


def _energy(values: Mapping[str, Any], time_s: float, gpus: int) -> dict[str, Any]:
    """Return the energy of an epoch; a power is that of all GPUs together, E = P t."""
    energy_j = {name: values[name] for name in _ENERGIES if name in values}
    if "power_w" in values:
        energy_j["gpu_energy_j"] = values["power_w"] * time_s
    if not energy_j:
        return {"energy_source": "none", "energy_verdict": "unavailable"}
    verdict = values.get("energy_verdict", "suspect")
    row = {
        **energy_j,
        "energy_source": values.get("energy_source", "integral"),
        "energy_verdict": verdict,
        "energy_reason": None if verdict == "ok" else _NOT_CHECKED,
    }
    if "gpu_energy_j" in energy_j:
        row["gpu_power_mean_w"] = energy_j["gpu_energy_j"] / time_s / gpus
        if not all(0 < row[name] < math.inf for name in ("gpu_energy_j", "gpu_power_mean_w")):
            raise InvalidCell("energy and time give no finite power > 0")
    return row


def _notes(source: str, values: Mapping[str, Any], spec: RunSpec) -> tuple[str, ...]:
    notes = [f"imported from {source}"]
    assumed = [f"{name} {value}" for name, value in _ASSUMED.items() if name not in values]
    if assumed:
        notes.append(f"not in the table and assumed: {', '.join(assumed)}")
    if spec.measure.epoch_count > 1:
        notes.append("the table has one mean over all epochs; each epoch gets this mean")
    return tuple(notes)
