"""Measurements made elsewhere as runs of a store: one row of a table, one run. Pure.

What a table does not tell is missing in the run too, or noted where a run cannot be without it.
"""

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import ValidationError

from wattlaw.store.fields import OPTIONS, FieldMap, Misread
from wattlaw.store.record import Facts, RunRecord
from wattlaw.store.rows import Row
from wattlaw.store.schema import EPOCHS
from wattlaw.study.identity import ID_DIGITS, canonical
from wattlaw.study.model import Measure, RunSpec, Setting, WorkloadSpec

#: The launcher of an imported run: nothing of that name can be started.
KIND = "imported"
HOST = "imported"
#: Where a workload's name is kept as the table has it, when it could name no workload here.
NAME = "workload"
_NOT_CHECKED = "measured elsewhere, not checked here"
_PARTS = ("gpu_energy_j", "cpu_energy_j", "dram_energy_j")
_SETTING = (
    "gpus", "global_batch", "local_batch", "power_limit_w", "clock_limit_mhz", "precision",
    "dataset_fraction",
)  # fmt: skip
_OF_SPEC = (*_SETTING, "workload", "hardware", "nodes", "repeat", "epochs")
#: What every run has, and what it is where a table does not tell.
_TAKEN = {"precision": "fp32", "dataset_fraction": "1", "nodes": "1"}


@dataclass(frozen=True)
class ImportedRun:
    """One row as a run, and its windows: each epoch's is the same."""

    line: int
    record: RunRecord
    train: Mapping[str, Any]
    evaluate: Mapping[str, Any] | None

    @property
    def setting(self) -> str:
        """Return what the run was, whichever of its repeats."""
        return canonical(self.record.spec.model_copy(update={"repeat": 0}))

    def epochs(self) -> pa.Table:
        """Return its windows, of ``store.schema.EPOCHS``."""
        count = self.record.spec.measure.epochs
        own = {"run_id": self.record.run_id, "host": HOST, "warmup": False}
        own |= {"interrupted": False, "from_step": 0}
        rows = [{**own, "phase": "train", "epoch": 0, **self.train}]
        if self.evaluate is not None:
            rows.append({**own, "phase": "evaluate", "epoch": count - 1, **self.evaluate})
        table = pa.Table.from_pylist(rows, schema=EPOCHS)
        if count == 1:
            return table
        trained = table.take(pa.array(np.zeros(count, dtype=np.int64)))
        place = EPOCHS.get_field_index("epoch")
        trained = trained.set_column(place, EPOCHS.field(place), pa.array(np.arange(count)))
        return pa.concat_tables([trained, table.slice(1)])


@dataclass(frozen=True)
class Refused:
    """A row that is kept out, and why."""

    line: int
    why: str


def parse_runs(
    rows: Iterable[Row], fields: FieldMap, source: str, study: str
) -> tuple[list[ImportedRun], list[Refused]]:
    """Return the runs that rows tell of, and the rows that tell of none.

    Rows of the same setting are numbered as its repeats in their order, bad ones too, unless the
    field ``repeat`` says their number.

    Parameters
    ----------
    rows
        Of one table.
    fields
        What its columns are.
    source
        The name of the file: with setting and repeat it is what makes a run the same.
    study
        Name of the study; the workload's too where the table names none.
    """
    found: list[ImportedRun] = []
    refused: list[Refused] = []
    repeats: Counter[str] = Counter()
    lines: dict[str, int] = {}
    numbered = "repeat" in {*fields.columns, *fields.constants}
    for row in rows:
        try:
            if row.fault is not None:
                raise Misread(row.fault)
            told = fields.fields(row.cells, _is_of_spec)
            spec = _spec(told, fields, study)
            if not numbered:
                setting = canonical(spec)
                spec = spec.model_copy(update={"repeat": repeats[setting]})
                repeats[setting] += 1
            run_id = identity(spec, source)
            train, evaluate, metric = _windows(row, fields, spec)
            if run_id in lines:
                raise Misread(f"has the setting and repeat of line {lines[run_id]}")
        except Misread as error:
            refused.append(Refused(row.line, str(error)))
            continue
        lines[run_id] = row.line
        record = RunRecord(
            run_id=run_id,
            study=study,
            spec=spec,
            seed=0,
            order_seed=0,
            status="done",
            notes=_notes(source, told, spec),
            facts=Facts(metric=metric),
        )
        found.append(ImportedRun(row.line, record, train, evaluate))
    return found, refused


def identity(spec: RunSpec, source: str) -> str:
    """Return the run id of an imported run: of what it was, and of the file that told of it."""
    text = json.dumps([canonical(spec), source])
    return hashlib.sha256(text.encode()).hexdigest()[:ID_DIGITS]


def slug(text: str) -> str:
    """Return a text as a name of letters, digits, '.', '_' and '-'; it may be empty."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).lstrip("._-")[:100].rstrip("-")


def _is_of_spec(name: str) -> bool:
    return name in _OF_SPEC or name.startswith(OPTIONS)


def _spec(told: Mapping[str, Any], fields: FieldMap, study: str) -> RunSpec:
    for name in ("gpus", "workload", "repeat"):
        if name in fields.columns and name not in told:
            raise Misread(f"{name} is missing")
    gpus, of_all, of_one = told["gpus"], told.get("global_batch"), told.get("local_batch")
    if of_all is None and of_one is not None:
        of_all = gpus * of_one
    if of_all is not None and of_all % gpus:
        raise Misread(f"global_batch {of_all} cannot be divided by {gpus} gpus")
    if of_all is not None and of_one not in (None, of_all // gpus):
        raise Misread(f"global_batch {of_all} is not {gpus} gpus x local_batch {of_one}")
    batches = {"global_batch": of_all, "local_batch": of_all // gpus} if of_all else {}
    name = told.get("workload", study)
    options = {key.removeprefix(OPTIONS): v for key, v in told.items() if key.startswith(OPTIONS)}
    if slug(name) != name:
        if NAME in options:
            raise Misread(f"options.{NAME} is needed for the workload's name as it is")
        options[NAME] = name
    try:
        return RunSpec(
            workload=WorkloadSpec(name=slug(name) or KIND, options=options),
            setting=Setting(**{key: told[key] for key in _SETTING if key in told} | batches),
            repeat=told.get("repeat", 0),
            measure=Measure(epochs=told.get("epochs", 1), warmup_epochs=0),
            launch_kind=KIND,
            hardware=told.get("hardware"),
            nodes=told.get("nodes", 1),
        )
    except ValidationError as error:
        raise Misread(error.errors()[0]["msg"]) from None


def _windows(
    row: Row, fields: FieldMap, spec: RunSpec
) -> tuple[dict[str, Any], dict[str, Any] | None, str | None]:
    """Return the training window, the evaluation's, and the name of the metric."""
    told = fields.fields(row.cells, lambda name: not _is_of_spec(name))
    time_s = told.get("epoch_time_s")
    if time_s is None:
        raise Misread("epoch_time_s is missing")
    train = {
        "duration_s": time_s,
        "samples": told.get("samples"),
        "steps": told.get("steps"),
        **_energy(told, time_s, spec.setting.gpus),
    }
    for name in ("sm_util", "mem_util"):
        train[f"{name}_mean"] = told.get(name, told.get(f"{name}_percent"))
    evaluate = {"duration_s": told.get("eval_time_s")}
    evaluate |= {name: told.get(name) for name in ("metric", "loss")}
    if all(value is None for value in evaluate.values()):
        return train, None, None
    evaluate |= {"energy_source": "none", "energy_verdict": "unavailable"}
    return train, evaluate, told.get("metric_name")


def _energy(told: Mapping[str, Any], time_s: float, gpus: int) -> dict[str, Any]:
    """Return the energy of an epoch; a power is that of all GPUs together, E = P t."""
    energy_j = {name: told[name] for name in _PARTS if name in told}
    if "power_w" in told:
        energy_j["gpu_energy_j"] = told["power_w"] * time_s
    if not energy_j:
        return {"energy_source": "none", "energy_verdict": "unavailable"}
    verdict = told.get("energy_verdict", "suspect")
    row = {
        **energy_j,
        "energy_source": told.get("energy_source", "integral"),
        "energy_verdict": verdict,
        "energy_reason": None if verdict == "ok" else _NOT_CHECKED,
    }
    if "gpu_energy_j" in energy_j:
        row["gpu_power_mean_w"] = energy_j["gpu_energy_j"] / time_s / gpus
        if not all(0 < row[name] < math.inf for name in ("gpu_energy_j", "gpu_power_mean_w")):
            raise Misread("its energy and time give no power that is a number")
    return row


def _notes(source: str, told: Mapping[str, Any], spec: RunSpec) -> tuple[str, ...]:
    notes = [imported_from(source)]
    taken = [f"{name} {value}" for name, value in _TAKEN.items() if name not in told]
    if taken:
        notes.append(f"not told by the table, and taken to be: {', '.join(taken)}")
    if spec.measure.epochs > 1:
        notes.append("each epoch has the mean over all, as the table tells it")
    return tuple(notes)


def imported_from(source: str) -> str:
    """Return the first note of an imported run."""
    return f"imported from {source}"
