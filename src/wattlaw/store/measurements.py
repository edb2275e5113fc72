"""Reads a table of measurements, each row of one setting: of an import, a replay or a comparison.

``fields`` defines the columns, ``field_map`` which column each field takes, in which unit.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattlaw.common.errors import BadInput
from wattlaw.store.field_map import (
    REQUIRED,
    Column,
    FieldMap,
    Getter,
    check_fields,
    is_blank,
    map_of_columns,
)
from wattlaw.store.fields import (
    OPTIONS,
    SETTING_FIELDS,
    STEP_PARTS,
    THROUGHPUT,
    TOKENS,
    Field,
    InvalidCell,
    global_batch_of,
)
from wattlaw.store.numbers import decimal_marks
from wattlaw.store.rows import Row, Rows, read_rows
from wattlaw.store.units import is_unit

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


@dataclass(frozen=True)
class Measurement:
    """One row: what was run, and what was measured, by the names of ``FIELDS``.

    ``setting`` has the fields of ``SETTING_FIELDS`` and the options; None where one of them cannot
    be read. ``result`` has the others that the row has, always with the time of an epoch or a step
    (``Measurements.time_field``), which a throughput becomes, and with ``gpu_energy_j`` where the
    table has a power. ``fault`` says why the row cannot be used.
    """

    line: int
    setting: Mapping[str, Any] | None
    result: Mapping[str, Any]
    fault: str | None = None
    more: tuple[int, ...] = ()  # its other lines, where cells have line breaks


@dataclass(frozen=True)
class Measurements:
    """The rows of a table, and the account of those that are none."""

    path: Path
    time_field: str  # ``epoch_time_s`` or ``step_time_s``
    rows: tuple[Measurement, ...]
    unit: str  # what ``Measurement.line`` counts: ``line`` or ``row``
    header: tuple[int, ...]  # lines of names and units
    left_out: tuple[tuple[int, str], ...]  # lines that are no measurements, and why
    notes: tuple[str, ...]  # which columns are converted from which unit

    def checked(self) -> "Measurements":
        """Return the table; raise ``BadInput``, which names the row, if a row has a fault."""
        for row in self.rows:
            if row.fault is not None:
                raise BadInput(f"{self.path}: {self.unit} {row.line}: {row.fault}")
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
    """Return the rows of a CSV (``.csv``), JSON-lines (``.jsonl``) or Parquet (``.parquet``) file.

    A unit in a column's name, in the row below the header or in each cell is converted to that of
    the field. Rows of totals, and of runs without a result such as OOM, are left out; a row with a
    cell that does not fit its field has a ``fault``.

    Parameters
    ----------
    path
        The file. ``rows.read_rows`` says which ones are refused, and how large they may be.
    fields
        The column of each field, as of ``field_map.parse_map``. By default each column is the field
        of its name, such as ``gpus``, ``step_time_ms``, ``samples_per_s`` or ``options.optimizer``,
        and every column must be one.
    others
        More fields, which columns may have without ``fields``; their values are in ``result``.
    required
        Fields of each of which a table without ``fields`` has at least one.

    Raises
    ------
    wattlaw.common.errors.BadInput
        The file is no table, lacks a field or has columns that exclude each other, or the unit of a
        column is unclear.
    """
    table = read_rows(path, None if fields is None else fields.needed)
    try:
        if fields is None:
            fields = map_of_columns(table.columns, others or {})
            check_fields(fields, "columns", required)
        units = _units(table)
        rows = table.rows[bool(units) :]
        columns = _columns(table.columns, rows, units, fields)
        getters, notes = fields.getters(columns), fields.conversions(columns)
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None
    left_out, measured = [*table.left_out], []
    for row in rows:
        if (why := _why_left_out(row, fields)) is not None:
            part = f"part of a row that begins on another {table.unit}"
            left_out += [(row.line, why), *((line, part) for line in row.more)]
        else:
            measured.append(_measurement(row, fields, getters))
    header = (*table.header, *((table.rows[0].line,) if units else ()))
    return Measurements(
        path, fields.time_field, tuple(measured), table.unit, header, tuple(left_out), tuple(notes)
    )


def _units(table: Rows) -> dict[str, str]:
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
    needed = fields.needed
    cells = {
        name: [cell for row in rows if not is_blank(cell := row.cells.get(name))]
        for name in names
        if name in needed
    }
    kinds = {text: fields.targets[name].of_field.number for name, text in fields.columns.items()}
    marks = {
        name: decimal_marks(cells[name], whole=kinds.get(name) is int)
        for name in cells
        if kinds.get(name, float) is not None
    }
    of_table = set().union(*marks.values())
    columns = {}
    for name in names:
        unit = units.get(name, "").strip("[]()")
        mark = marks.get(name) or of_table
        columns[name] = Column(
            name,
            f"{name} [{unit}]" if unit else name,
            next(iter(cells.get(name, ())), None),
            next(iter(mark)) if len(mark) == 1 else None,
        )
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


def _measurement(row: Row, fields: FieldMap, getters: Mapping[str, Getter]) -> Measurement:
    setting: dict[str, Any] | None = None
    result: dict[str, Any] = {}

    def values(*, of_setting: bool) -> dict[str, Any]:
        names = [name for name in fields.targets if is_of_setting(name) == of_setting]
        found = {name: getters[name](row.cells) for name in names if name in getters}
        constants = {name: fields.constants[name] for name in names if name in fields.constants}
        return constants | {name: value for name, value in found.items() if value is not None}

    try:
        if row.fault is not None:
            raise InvalidCell(row.fault)
        setting = values(of_setting=True)
        for name in ("gpus", "workload", "repeat"):
            if name in fields.columns and name not in setting:
                raise InvalidCell(f"{name} is missing; fill merged cells in every row")
        result = values(of_setting=False)
        _complete(result, setting, fields)
    except InvalidCell as error:
        return Measurement(row.line, setting, result, str(error), row.more)
    return Measurement(row.line, setting, result, None, row.more)


def is_of_setting(name: str) -> bool:
    """Say whether a field is part of what was run, not of its result."""
    return name in SETTING_FIELDS or name.startswith(OPTIONS)


def _complete(result: dict[str, Any], setting: Mapping[str, Any], fields: FieldMap) -> None:
    """Add the time that a throughput means, and the energy that a power means: E = P t."""
    time_field = fields.time_field
    if fields.has(THROUGHPUT):
        result[time_field] = _time_of_rate(result, setting, fields)
    time_s = result.get(time_field)
    if time_s is None:
        if not fields.has(time_field):
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
