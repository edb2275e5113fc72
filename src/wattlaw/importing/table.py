"""Any table: each row becomes one run; ``--map`` says which column each field takes.

What a table does not say is missing in the run, or noted where a run must have a value.
"""

import contextlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wattlaw.common.errors import BadInput
from wattlaw.common.scopes import KINDS
from wattlaw.importing.importer import Imported, Options
from wattlaw.importing.mapping import (
    THROUGHPUT,
    TOKENS,
    Column,
    FieldMap,
    Getter,
    is_blank,
    number_of,
    parse_map,
)
from wattlaw.importing.reading import Source
from wattlaw.importing.runs import (
    EPOCHS_MEASURE,
    NO_ENERGY,
    NOT_CHECKED,
    SPEC_FIELDS,
    STEPS_MEASURE,
    RunMaker,
)
from wattlaw.importing.units import is_unit
from wattlaw.store.fields import OPTIONS, STEP_PARTS, InvalidCell
from wattlaw.store.imports import ImportedRun
from wattlaw.store.numbers import decimal_marks
from wattlaw.store.record import Facts
from wattlaw.store.rows import Row, Rows, read_rows

#: Most windows of one import.
MAX_WINDOWS = 2_000_000
#: The first cell of a row that sums up others; texts that stand for no unit, and for no result.
_SUMMARIES = frozenset({
    "total", "totals", "sum", "mean", "average", "avg", "median", "std", "stdev", "std dev",
    "geomean", "overall", "summe", "gesamt", "mittelwert",
})  # fmt: skip
_NO_UNITS = frozenset({"", "-", "–", "—", "#", "1", "count", "number", "name", "text", "n/a"})
_FAILED = frozenset({
    "oom", "out of memory", "fail", "failed", "error", "crash", "crashed", "timeout", "dnf",
    "did not finish",
})  # fmt: skip
_ENERGIES = [f"{kind}_energy_j" for kind in KINDS]


class TableImporter:
    """One row of a CSV, JSON-lines or Parquet file is one run."""

    name = "table"
    description = "a .csv, .jsonl or .parquet table, with --map"

    def detect(self, path: Path, head: bytes) -> bool:  # noqa: ARG002 - the protocol's
        """Return False: a table is the file with its suffix that no other format has."""
        return False

    def read(self, source: Source, options: Options) -> Imported:
        """Return a run for each row."""
        path = source.path
        if options.mapping is None:
            raise BadInput(
                f"{path}: a table needs --map FIELD=COLUMN,..., or --from FORMAT if it is no table"
            )
        fields = parse_map(
            options.mapping,
            {name: options.constants.get(name) for name in ("workload", "hardware")},
        )
        table, account = read_rows(path, fields.needed), source.account
        account.unit = table.unit
        for line in table.header:
            account.header(line)
        for line, why in table.left_out:
            account.leave_out(why, line)
        for row in table.rows:
            account.leave_out(f"part of a row that begins on another {table.unit}", *row.more)
        runs, notes = parse_runs(table, fields, source, options)
        return Imported(f"table of {len(table.rows):,} rows", runs, notes=notes)


def parse_runs(
    table: Rows, fields: FieldMap, source: Source, options: Options
) -> tuple[list[ImportedRun], list[str]]:
    """Return the runs of a table, and notes; rows that cannot be imported are rejected.

    Rows of the same setting are numbered as its repeats in their order, rejected ones included,
    unless the field ``repeat`` gives the number. A workload that the table does not name has the
    name of the study.
    """
    path, account = source.path, source.account
    units = _units(table)
    columns = _columns(table.columns, table.rows[bool(units) :], units, fields)
    try:
        getters = fields.getters(columns)
        notes = fields.conversions(columns)
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None
    of_spec = {name: get for name, get in getters.items() if is_spec_field(name)}
    others = {name: get for name, get in getters.items() if name not in of_spec}
    constants = {name: value for name, value in fields.constants.items() if is_spec_field(name)}
    shared = {name: value for name, value in fields.constants.items() if name not in constants}
    measure = STEPS_MEASURE if fields.time_field == "step_time_s" else EPOCHS_MEASURE
    maker = RunMaker(path, options, repeats_are_numbered=fields.has("repeat"))
    runs: list[ImportedRun] = []
    windows = 0
    if units:
        account.header(table.rows[0].line)
    for row in table.rows[bool(units) :]:
        if (why := _why_left_out(row, fields)) is not None:
            account.leave_out(why, row.line)
            continue
        spec_values: dict[str, Any] | None = None
        try:
            if row.fault is not None:
                raise InvalidCell(row.fault)
            spec_values = constants | _values(row, of_spec)
            for name in ("gpus", "workload", "repeat"):
                if name in fields.columns and name not in spec_values:
                    raise InvalidCell(f"{name} is missing; fill merged cells in every row")
            values = shared | _values(row, others)
            rows, metric = _windows(values, spec_values, fields)
            note: tuple[str, ...] = ()
            if len(rows) > 1 and rows[1]["phase"] == "train":
                note = ("the table has one mean over all epochs; each epoch gets this mean",)
            run = maker.run(
                spec_values, rows, measure, line=row.line, notes=note, facts=Facts(metric=metric)
            )
        except InvalidCell as error:
            if spec_values is not None:
                with contextlib.suppress(InvalidCell):
                    maker.skip(spec_values, measure)
            account.reject(row.line, str(error))
            continue
        windows += len(rows)
        if windows > MAX_WINDOWS:
            raise BadInput(f"{path}: more than {MAX_WINDOWS:,} epochs in one table")
        runs.append(run)
        account.read(row.line, *row.more)
    return runs, notes


def _units(table: Rows) -> dict[str, str]:
    """Return the unit of each column that the row below the header names; none if it has data."""
    cells = table.rows[0].cells if table.rows and table.rows[0].fault is None else {}
    texts = {name: cell for name, cell in cells.items() if isinstance(cell, str) and cell.strip()}
    units = {name: cell.strip() for name, cell in texts.items() if is_unit(cell)}
    others = {cell.strip("[]() ").lower() for name, cell in texts.items() if name not in units}
    has_numbers = any(not isinstance(cell, str) for cell in cells.values() if cell is not None)
    return units if units and not has_numbers and others <= _NO_UNITS else {}


def _columns(
    names: Sequence[str], rows: Sequence[Row], units: Mapping[str, str], fields: FieldMap
) -> dict[str, Column]:
    """Return the columns; where a column shows no decimal mark, its mark is that of the others."""
    cells = {
        name: [cell for row in rows if not is_blank(cell := row.cells.get(name))]
        for name in names
        if name in fields.needed
    }
    kinds = {text: number_of(field) for field, text in fields.columns.items()}
    marks = {
        name: decimal_marks(cells[name], whole=kinds.get(name) is int)
        for name in cells
        if kinds.get(name, float) is not None
    }
    of_table = set().union(*marks.values())
    columns = {}
    for name in names:
        unit = units.get(name, "").strip("[]()")
        label = f"{name} [{unit}]" if unit else name
        mark = marks.get(name) or of_table
        first = next(iter(cells.get(name, ())), None)
        columns[name] = Column(name, label, first, next(iter(mark)) if len(mark) == 1 else None)
    return columns


def _why_left_out(row: Row, fields: FieldMap) -> str | None:
    label = row.label or next((each for each in row.cells.values() if isinstance(each, str)), "")
    if label.strip(" :.").lower() in _SUMMARIES:
        return "a row of totals or means"
    times = (
        row.cells.get(fields.columns.get(name, "")) for name in (fields.time_field, THROUGHPUT)
    )
    if any(isinstance(time, str) and time.strip().lower() in _FAILED for time in times):
        return "a run without a result, such as OOM"
    return None


def is_spec_field(name: str) -> bool:
    """Say whether a field is part of what was run, not of its result."""
    return name in SPEC_FIELDS or name.startswith(OPTIONS)


def _values(row: Row, getters: Mapping[str, Getter]) -> dict[str, Any]:
    values = ((name, get(row.cells)) for name, get in getters.items())
    return {name: value for name, value in values if value is not None}


def _windows(
    values: Mapping[str, Any], spec: Mapping[str, Any], fields: FieldMap
) -> tuple[list[dict[str, Any]], str | None]:
    """Return the windows of a row, and the name of the metric."""
    time_field, is_by_steps = fields.time_field, fields.time_field == "step_time_s"
    time_s = values.get(time_field)
    if fields.has(THROUGHPUT):
        time_s = _time_of_rate(values, spec, fields)
    if time_s is None:
        raise InvalidCell(f"{time_field} is missing")
    parts_s = {name: values.get(name) for name in STEP_PARTS}
    if math.fsum(value or 0.0 for value in parts_s.values()) > time_s:
        raise InvalidCell(f"{', '.join(STEP_PARTS)} add up to more than {time_field}")
    train = {
        "phase": "steps" if is_by_steps else "train",
        "epoch": 0,
        "from_step": 0,
        "duration_s": time_s,
        "samples": _batch(spec) if is_by_steps else values.get("samples"),
        "steps": 1 if is_by_steps else values.get("steps"),
        **parts_s,
        **_energy(values, time_s, spec["gpus"]),
    }
    for name in ("sm_util", "mem_util"):
        percent = values.get(f"{name}_percent")
        train[f"{name}_mean"] = values.get(name) if percent is None else percent / 100
    count = 1 if is_by_steps else spec.get("epochs", 1)
    windows = [{**train, "epoch": epoch} for epoch in range(count)] if count > 1 else [train]
    evaluate = {"duration_s": values.get("eval_time_s")}
    evaluate |= {name: values.get(name) for name in ("metric", "loss")}
    if all(value is None for value in evaluate.values()):
        return windows, None
    shared = {"phase": "evaluate", "epoch": count - 1, "from_step": 0}
    return [*windows, {**shared, **evaluate}], values.get("metric_name")


def _batch(spec: Mapping[str, Any]) -> int | None:
    batch, local = spec.get("global_batch"), spec.get("local_batch")
    return local * spec["gpus"] if batch is None and local is not None else batch


def _time_of_rate(
    values: Mapping[str, Any], spec: Mapping[str, Any], fields: FieldMap
) -> float | None:
    """Return the seconds of an epoch or a step from a throughput."""
    rate = values.get(THROUGHPUT)
    if rate is None:
        raise InvalidCell("the throughput is missing")
    kind, is_per_gpu, seconds = fields.rate
    rate *= (spec["gpus"] if is_per_gpu else 1) / seconds
    if kind == "steps":
        return float(1 / rate)
    if kind == "tokens":
        tokens = values.get(TOKENS)
        if tokens is None:
            raise InvalidCell(f"{TOKENS} is missing")
        rate /= tokens
    name = "samples" if fields.time_field == "epoch_time_s" else "global_batch"
    samples = values.get("samples") if name == "samples" else _batch(spec)
    if samples is None:
        raise InvalidCell(f"{name} is missing")
    time_s = samples / rate if rate > 0 else math.inf
    if not 0 < time_s < math.inf:
        raise InvalidCell("the throughput gives no finite time > 0")
    return float(time_s)


def _energy(values: Mapping[str, Any], time_s: float, gpus: int) -> dict[str, Any]:
    """Return the energy of an epoch; a power is that of all GPUs together, E = P t."""
    energy_j = {name: values[name] for name in _ENERGIES if name in values}
    if "power_w" in values:
        energy_j["gpu_energy_j"] = values["power_w"] * time_s
    if not energy_j:
        return NO_ENERGY
    source = values.get("energy_source", "integral")
    verdict = values.get("energy_verdict", "suspect")
    row = {
        **energy_j,
        "energy_source": source,
        "energy_verdict": verdict,
        "energy_reason": None if verdict == "ok" else NOT_CHECKED,
    }
    outer = next((kind for kind in ("node", "module") if f"{kind}_energy_j" in energy_j), None)
    if outer == "node":
        row |= {"node_energy_source": source, "node_energy_verdict": verdict}
        row |= NO_ENERGY if len(energy_j) == 1 else {}
    if outer:
        row["energy_scope"] = outer
    if "gpu_energy_j" in energy_j:
        row["gpu_power_mean_w"] = energy_j["gpu_energy_j"] / time_s / gpus
        if not all(0 < row[name] < math.inf for name in ("gpu_energy_j", "gpu_power_mean_w")):
            raise InvalidCell("energy and time give no finite power > 0")
    return row


IMPORTER = TableImporter()
