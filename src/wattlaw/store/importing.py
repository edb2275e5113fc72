"""Measurements from elsewhere as runs of a store: each row of a table becomes one run.

What a table does not say is missing in the run, or noted where a run must have a value. A store
gets each run once, and completely or not at all.
"""

import hashlib
import io
import json
import math
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from wattlaw.errors import BadInput
from wattlaw.files import naming
from wattlaw.store.fields import OPTIONS, STEP_PARTS, FieldMap, InvalidCell, global_batch_of
from wattlaw.store.parquet import read_all
from wattlaw.store.record import Facts, RunRecord
from wattlaw.store.rows import Row
from wattlaw.store.run_folder import RunFolder, RunLock
from wattlaw.store.schema import EPOCHS, TELEMETRY
from wattlaw.store.store import IMPORTING, Store
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


@dataclass(frozen=True)
class ImportedRun:
    """One row as a run, with the windows of its epochs, which are all equal."""

    line: int
    record: RunRecord
    train: Mapping[str, Any]
    evaluate: Mapping[str, Any] | None

    @property
    def setting(self) -> str:
        """Return the canonical JSON of what was run, without the number of the repeat."""
        return canonical(self.record.spec.model_copy(update={"repeat": 0}))

    def epochs(self) -> pa.Table:
        """Return the windows, with the schema ``store.schema.EPOCHS``."""
        measure = self.record.spec.measure
        count = measure.epoch_count or 1
        shared = {"run_id": self.record.run_id, "host": HOST, "warmup": False}
        shared |= {"interrupted": False, "from_step": 0}
        phase = "steps" if measure.is_by_steps else "train"
        rows = [{**shared, "phase": phase, "epoch": 0, **self.train}]
        if self.evaluate is not None:
            rows.append({**shared, "phase": "evaluate", "epoch": count - 1, **self.evaluate})
        table = pa.Table.from_pylist(rows, schema=EPOCHS)
        if count == 1:
            return table
        train = table.take(pa.array(np.zeros(count, dtype=np.int64)))
        column = EPOCHS.get_field_index("epoch")
        train = train.set_column(column, EPOCHS.field(column), pa.array(np.arange(count)))
        return pa.concat_tables([train, table.slice(1)])


@dataclass(frozen=True)
class RejectedRow:
    """A row that is not imported, and the reason."""

    line: int
    reason: str


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
        runs.append(ImportedRun(row.line, record, train, evaluate))
    return runs, rejected


def identity(spec: RunSpec, source: str) -> str:
    """Return the run id of an imported run, a hash of its specification and its file's name."""
    text = json.dumps([canonical(spec), source])
    return hashlib.sha256(text.encode()).hexdigest()[:ID_DIGITS]


def slug(text: str) -> str:
    """Return a text as a name of letters, digits, '.', '_' and '-'; it may be empty."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).lstrip("._-")[:100].rstrip("-")


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


@dataclass(frozen=True)
class ImportResult:
    """The result of importing a table into a store, as numbers of runs."""

    added: int
    unchanged: int
    rejected: tuple[RejectedRow, ...]
    other_runs: int  # runs of the store from a file of this name that are not in the table


def write_runs(store: Store, runs: Sequence[ImportedRun]) -> ImportResult:
    """Write the runs of one table into a store; runs that the store has stay as they are.

    A run that the store has with other values is rejected, and so are all new runs of its
    setting: with new repeat numbers they might count a measurement twice.
    """
    known = {record.run_id: record for record in store.records()}
    existing = [run for run in runs if run.record.run_id in known]
    changed = _changed(store, existing, known)
    changed_settings = {run.setting for run in changed}
    added: list[ImportedRun] = []
    rejected = [
        RejectedRow(
            run.line,
            f"run {run.record.run_id} is in the store with other values; to replace it, remove "
            f"{store.folder(run.record.run_id).path} and import again",
        )
        for run in changed
    ]
    for run in runs:
        if run.record.run_id in known:
            continue
        if changed_settings and run.setting in changed_settings:
            rejected.append(RejectedRow(run.line, "another run of its setting has changed"))
        else:
            added.append(run)
    _add(store, added)
    run_ids = {run.record.run_id for run in runs}
    source = {run.record.notes[0] for run in runs}
    other_runs = sum(
        run_id not in run_ids and not source.isdisjoint(record.notes[:1])
        for run_id, record in known.items()
    )
    return ImportResult(len(added), len(existing) - len(changed), tuple(rejected), other_runs)


def _changed(
    store: Store, runs: Sequence[ImportedRun], known: dict[str, RunRecord]
) -> list[ImportedRun]:
    """Return the runs that a store has with other values."""
    done = [run for run in runs if known[run.record.run_id].status == "done"]
    paths = [store.folder(run.record.run_id).epochs_path for run in done]
    windows = _by_run(read_all(paths, EPOCHS).combine_chunks())
    return [
        run
        for run in runs
        if known[run.record.run_id].facts != run.record.facts
        or not _are_equal(windows.get(run.record.run_id), run.epochs())
    ]


def _by_run(table: pa.Table) -> dict[str, pa.Table]:
    ids = table["run_id"].to_numpy()
    first = np.flatnonzero(ids[1:] != ids[:-1]) + 1
    bounds = [0, *first.tolist(), len(ids)] if len(ids) else [0]
    return {str(ids[begin]): table.slice(begin, end - begin) for begin, end in pairwise(bounds)}


def _are_equal(stored: pa.Table | None, imported: pa.Table) -> bool:
    if stored is None or len(stored) != len(imported):
        return False
    # The comparison of text makes NaN, the loss of a diverged run, equal to itself.
    return stored.equals(imported) or str(stored.to_pylist()) == str(imported.to_pylist())


def _add(store: Store, runs: Sequence[ImportedRun]) -> None:
    """Write each run into a temporary folder and then move it to its place."""
    no_samples = io.BytesIO()
    pq.write_table(TELEMETRY.empty_table(), no_samples)
    with (
        naming(store.path),
        tempfile.TemporaryDirectory(dir=store.path, prefix=IMPORTING) as temporary,
        RunLock(RunFolder(Path(temporary))) as lock,
    ):
        if not lock.acquire():  # the lock keeps others from removing the folder as abandoned
            raise BadInput(f"{temporary}: removed by another process; import again")
        for run in runs:
            folder = RunFolder(Path(temporary) / run.record.run_id)
            folder.write(run.record, durable=False)
            folder.telemetry_path.write_bytes(no_samples.getvalue())
            pq.write_table(run.epochs(), folder.epochs_path, compression="none")  # few rows
            _move(folder.path, store.folder(run.record.run_id))


def _move(path: Path, target: RunFolder) -> None:
    try:
        path.rename(target.path)
    except OSError as error:
        if not target.path.exists():
            raise
        if target.read() is None:  # otherwise another import wrote the same run first
            raise BadInput(
                f"{target.path}: the folder has no record; remove it ({error.strerror})"
            ) from None
