"""Reads a user's table: measurements of an import or a replay, and columns of a comparison.

``fields`` defines the columns, ``field_map`` which column each field takes, in which unit.
"""

import contextlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattlaw.common.errors import BadInput
from wattlaw.common.text import join_names, quote
from wattlaw.store.field_map import REQUIRED, Column, FieldMap, is_blank, map_of_columns
from wattlaw.store.fields import (
    MODEL,
    OPTION,
    OPTIONS,
    SETTING_FIELDS,
    STEP_PARTS,
    THROUGHPUT,
    TOKENS,
    Field,
    InvalidCell,
    global_batch_of,
    in_range,
)
from wattlaw.store.rows import Row, Rows, read_rows
from wattlaw.store.units import finite_number, is_unit
from wattlaw.study.out_of_memory import OUT_OF_MEMORY, memory_that_ran_out
from wattlaw.study.setting import MODEL_SIZES

if TYPE_CHECKING:
    import pandas as pd

#: The first cell of a row that sums up others; texts that stand for no unit, and for a result.
_SUMMARIES = frozenset({
    "total", "totals", "sum", "mean", "average", "avg", "median", "std", "stdev", "std dev",
    "geomean", "overall", "summe", "gesamt", "mittelwert",
})  # fmt: skip
_NO_UNITS = frozenset({"", "-", "–", "—", "#", "1", "count", "number", "name", "text", "n/a"})
#: What a cell says beside its value: which fp8, and how many copies of the model share states.
_DETAILS = {
    "precision": re.compile(r"(mx)?(fp8|float8)(?:[-_ ](\w+))?"),  # MXFP8, FP8-CS, float8 rowwise
    "sharding": re.compile(r"()(\w+)(?: over)? (\d+|all(?: dp)?)"),  # zero1 over 8, fsdp 8
}
_DONE = frozenset({"ok", "done", "success", "succeeded", "completed", "finished"})
_MISSING = {"", "na", "n/a", "#n/a", "<na>", "nan", "-nan", "null", "none"}
_NUMBER = in_range(-math.inf, math.inf, "a number")
Reader = Callable[[Any], Any]  # of a cell of a column


@dataclass(frozen=True)
class Measurement:
    """One row. ``setting`` has the fields of ``SETTING_FIELDS`` and the options; None where one of
    them cannot be read. ``result`` has the others that the row has, always with the time of an
    epoch or a step (``Measurements.time_field``), which a throughput becomes, and with
    ``gpu_energy_j`` where the table has a power. ``fault`` says why the row cannot be used,
    ``failure`` why its run has no result."""

    line: int
    setting: Mapping[str, Any] | None
    result: Mapping[str, Any]
    fault: str | None = None
    failure: str | None = None


@dataclass(frozen=True)
class Measurements:
    path: Path
    time_field: str  # ``epoch_time_s`` or ``step_time_s``
    rows: tuple[Measurement, ...]
    header: tuple[int, ...]  # lines of names and units
    left_out: tuple[tuple[int, str], ...]  # lines that are no measurements, and why
    notes: tuple[str, ...]  # which columns are converted from which unit

    def checked(self) -> "Measurements":
        for row in self.rows:
            if row.fault is not None:
                raise BadInput(f"{self.path}: line {row.line}: {row.fault}")
        if not self.rows:
            raise BadInput(f"{self.path}: no rows; allowed: one row or more")
        return self


def read_measurements(
    path: Path,
    fields: FieldMap | None = None,
    *,
    others: Mapping[str, Field] | None = None,
    required: Iterable[Iterable[str]] = REQUIRED,
) -> Measurements:
    """Return the rows of a CSV or JSON-lines file. A unit in a column's name, in the row below the
    header or in each cell is converted to that of the field. Rows of totals are left out; a row
    with a cell that does not fit its field has a ``fault``. Without ``fields``, each column must be
    named as a field, such as ``gpus``, ``step_time_ms`` or ``options.optimizer``, or as one of
    ``others``, and the table has at least one of each of ``required``."""
    table = read_rows(path, None if fields is None else {*fields.columns.values()})
    try:
        if fields is None:
            fields = map_of_columns(table.columns, others or {})
            fields.check("columns", required)
        units = _units(table)
        rows = table.rows[bool(units) :]
        columns = {}
        for name in table.columns:
            unit = units.get(name, "").strip("[]()")
            cells = (row.cells.get(name) for row in rows)
            first = next((cell for cell in cells if not is_blank(cell)), None)
            columns[name] = Column(name, f"{name} [{unit}]" if unit else name, first)
        found = {name: fields.targets[name].reader(columns) for name in fields.columns}
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None
    readers = {name: read for name, (read, _) in found.items()}
    left_out, measured = [*table.left_out], []
    for row in rows:
        label = row.label or next((c for c in row.cells.values() if isinstance(c, str)), "")
        if label.strip(" :.").lower() in _SUMMARIES:
            left_out.append((row.line, "a row of totals or means"))
        else:
            measured.append(_measurement(row, fields, readers))
    header = (*table.header, *((table.rows[0].line,) if units else ()))
    notes = tuple(note for _, note in found.values() if note is not None)
    return Measurements(path, fields.time_field, tuple(measured), header, tuple(left_out), notes)


def _units(table: Rows) -> dict[str, str]:
    """Return the unit of each column, where the first row has nothing but units."""
    cells = table.rows[0].cells if table.rows and table.rows[0].fault is None else {}
    texts = {name: cell for name, cell in cells.items() if isinstance(cell, str) and cell.strip()}
    units = {name: cell.strip() for name, cell in texts.items() if is_unit(cell)}
    others = {cell.strip("[]() ").lower() for name, cell in texts.items() if name not in units}
    has_numbers = any(not isinstance(cell, str) for cell in cells.values() if cell is not None)
    return units if units and not has_numbers and others <= _NO_UNITS else {}


def _measurement(row: Row, fields: FieldMap, readers: Mapping[str, Reader]) -> Measurement:
    setting: dict[str, Any] | None = None
    result: dict[str, Any] = {}

    details = dict[str, str]()

    def values(*, of_setting: bool) -> dict[str, Any]:
        known = {}
        for name, target in fields.targets.items():
            is_of_setting = name in SETTING_FIELDS or name.startswith((OPTIONS, MODEL))
            if is_of_setting == of_setting:
                read, cell = readers.get(name), row.cells.get(target.column or "")
                pattern = _DETAILS.get(name)
                if pattern and (parts := pattern.fullmatch(str(cell).strip().lower())):
                    details[name], cell = parts[1] or parts[3], parts[2]
                known[name] = target.value if read is None else read(cell)
        return {name: value for name, value in known.items() if value is not None}

    columns = (fields.columns.get(name, "") for name in (fields.time_field, THROUGHPUT))
    times = [cell for name in columns if isinstance(cell := row.cells.get(name), str)]
    fault, failure = None, OUT_OF_MEMORY if any(map(memory_that_ran_out, times)) else None
    try:
        if row.fault is not None:
            raise InvalidCell(row.fault)
        setting = values(of_setting=True)
        for name in ("gpus", "workload", "repeat"):
            if name in readers and name not in setting:
                raise InvalidCell(f"{name} is missing; fill merged cells in every row")
        if kind := details.get("precision"):
            setting.setdefault(f"{OPTIONS}fp8", kind)  # runs of several kinds are no repeats
        copies = setting["gpus"] // math.prod(setting.get(name, 1) for name in MODEL_SIZES)
        if details.get("sharding", "all").partition(" ")[0] not in ("all", str(copies)):
            given = f"sharding is among {details['sharding']} of {copies} copies of the model"
            raise InvalidCell(f"{given}; allowed: among all of them")
        if failure is None:
            result = values(of_setting=False)
            failure = _failure_of(result.pop("status", "ok"))
        if failure is None:
            _complete(result, setting, fields)
    except InvalidCell as error:
        fault = str(error)
    return Measurement(row.line, setting, result, fault, failure)


def _failure_of(status: str) -> str | None:
    text = status.lower().replace("_", " ")
    if text in _DONE:
        return None
    if re.search(r"\boom\b|out of memory|outofmemory", text) is None:
        return f"failed elsewhere: {status}"
    is_sure = re.search(r"\bor\b|/", text) is None
    return OUT_OF_MEMORY if is_sure else f"{OUT_OF_MEMORY}, or another failure ({status})"


def _complete(result: dict[str, Any], setting: Mapping[str, Any], fields: FieldMap) -> None:
    """Add the time that a throughput means, and the energy that a power means: E = P t."""
    time_field = fields.time_field
    if THROUGHPUT in fields.targets and (THROUGHPUT in result or time_field not in result):
        result[time_field] = _time_of_rate(result, setting, fields)
    time_s = result.get(time_field)
    if time_s is None:
        if time_field not in fields.targets:
            return
        raise InvalidCell(f"{time_field} is missing")
    if math.fsum(result.get(name) or 0.0 for name in STEP_PARTS) > time_s:
        raise InvalidCell(f"{', '.join(STEP_PARTS)} add up to more than {time_field}")
    if "power_w" in result:
        result["gpu_energy_j"] = result["power_w"] * time_s


def _time_of_rate(result: Mapping[str, Any], setting: Mapping[str, Any], fields: FieldMap) -> float:
    rate = result.get(THROUGHPUT)
    if rate is None:
        raise InvalidCell("the throughput is missing")
    kind, is_per_gpu, seconds = fields.rate
    rate *= (setting["gpus"] if is_per_gpu else 1) / seconds
    if kind == "steps":
        return float(1 / rate)
    if kind == "tokens":
        if (tokens := result.get(TOKENS)) is None:
            raise InvalidCell(f"{TOKENS} is missing")
        rate /= tokens
    is_of_epochs = fields.time_field == "epoch_time_s"
    samples = result.get("samples") if is_of_epochs else global_batch_of(setting)
    if samples is None:
        raise InvalidCell(f"{'samples' if is_of_epochs else 'global_batch'} is missing")
    time_s = samples / rate if rate > 0 else math.inf
    if not 0 < time_s < math.inf:
        raise InvalidCell("the throughput gives no finite time > 0")
    return float(time_s)


def read_table(path: Path, numbers: Sequence[str], others: Sequence[str] = ()) -> "pd.DataFrame":
    """Return some columns of a user's table as a frame. Missing values of ``numbers`` are NaN; one
    of ``others`` whose texts are all numbers becomes numeric. Raises ``BadInput`` as
    ``rows.read_rows`` does, if a column is missing, or if a cell is not a number or not a label."""
    import pandas as pd

    table = read_rows(path, {*numbers, *others})
    for name in (*numbers, *others):
        if name not in table.columns:
            raise BadInput(f"{path}: no column {quote(name)}; allowed: {join_names(table.columns)}")
    columns: dict[str, list[Any]] = {name: [] for name in (*others, *numbers)}
    for row in table.rows:
        where = f"{path}: line {row.line}:"
        if row.fault is not None:
            raise BadInput(f"{where} {row.fault}")
        for name, cells in columns.items():
            value, kind = row.cells.get(name), _NUMBER if name in numbers else OPTION
            try:
                cells.append(None if _is_missing(value) else kind.parse_cell(quote(name), value))
            except InvalidCell as error:
                raise BadInput(f"{where} {error}") from None
    data = {name: _series(cells, is_number=name in numbers) for name, cells in columns.items()}
    return pd.DataFrame(data)


def _is_missing(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) < 10 and value.strip().lower() in _MISSING
    return value is None or (isinstance(value, float) and math.isnan(value))


def _series(cells: list[Any], *, is_number: bool) -> "pd.Series":
    import pandas as pd

    if is_number:
        return pd.Series(cells, dtype=float)
    types = {type(cell) for cell in cells if cell is not None}
    if types == {str}:
        with contextlib.suppress(ValueError):
            numbers = [None if cell is None else finite_number(cell) for cell in cells]
            return pd.to_numeric(pd.Series(numbers)).convert_dtypes()
    elif len(types) > 1 and not types <= {int, float}:
        cells = [None if cell is None else str(cell) for cell in cells]
    return pd.Series(cells)
