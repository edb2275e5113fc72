"""Tables of one or more stores, from a user's file, and to a CSV, Parquet or JSON-lines file."""

import contextlib
import csv
import json
import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, TextIO

import pandas as pd
import pyarrow as pa

from wattlaw.common.errors import BadInput
from wattlaw.common.files import replacing, write_parquet
from wattlaw.common.text import join_names, quote
from wattlaw.store.fields import MAX_TEXT, finite_number
from wattlaw.store.numbers import UnclearNumber, decimal_marks, read_number
from wattlaw.store.rows import FORMULA, read_rows
from wattlaw.store.store import Store

#: Common texts for a missing value.
_MISSING = {"", "na", "n/a", "#n/a", "<na>", "nan", "-nan", "null", "none"}
_MAX_INT = 2**63 - 1
#: Suffixes of the files that ``write_table`` writes and ``rows.read_rows`` reads.
KINDS = (".csv", ".parquet", ".jsonl")


def read_stores(stores: Sequence[Store]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the tables ``runs`` and ``epochs`` of one or more stores."""
    tables: dict[str, list[pd.DataFrame]] = {"runs": [], "epochs": []}
    for store in stores:
        snapshot = store.snapshot()
        epochs = store.arrow("epochs", validate=True, snapshot=snapshot)
        tables["epochs"].append(epochs.to_pandas())
        # After the windows, since runs with damaged windows have the status damaged.
        tables["runs"].append(store.arrow("runs", snapshot=snapshot).to_pandas())
    runs, epochs = (pd.concat(parts, ignore_index=True) for parts in tables.values())
    if runs["run_id"].duplicated().any():
        run_id = runs.loc[runs["run_id"].duplicated(), "run_id"].iloc[0]
        raise BadInput(
            f"run {run_id} is in more than one store; set launch.hardware to a label for each "
            "machine's study"
        )
    return runs, epochs


def read_table(path: Path, numbers: Sequence[str], others: Sequence[str] = ()) -> pd.DataFrame:
    """Return some columns of a user's CSV, JSON-lines or Parquet file as a frame.

    Missing values of ``numbers`` are NaN. One of ``others`` whose texts are all numbers becomes
    numeric. Raises ``BadInput`` as ``rows.read_rows`` does, if a column is missing, or if a cell is
    not a number or not a label.
    """
    table = read_rows(path, {*numbers, *others})
    for name in (*numbers, *others):
        if name not in table.columns:
            raise BadInput(f"{path}: no column {quote(name)}; allowed: {join_names(table.columns)}")
    columns: dict[str, list[Any]] = {name: [] for name in (*others, *numbers)}
    marks = decimal_marks(row.cells.get(name) for row in table.rows for name in numbers)
    mark = marks.pop() if len(marks) == 1 else None
    for row in table.rows:
        where = f"{path}: {table.unit} {row.line}:"
        if row.fault is not None:
            raise BadInput(f"{where} {row.fault}")
        for name, cells in columns.items():
            value = row.cells.get(name)
            try:
                if isinstance(value, str) and name in numbers and not _is_missing(value):
                    value = read_number(value, mark)
                parse = finite_number if name in numbers else _label
                cells.append(None if _is_missing(value) else parse(value))
            except ValueError as error:
                allowed = "a number" if name in numbers else f"at most {MAX_TEXT} characters"
                given = f"{quote(name)} is {quote(value)}"
                if isinstance(error, UnclearNumber) and str(error):
                    given += f", which {error}"
                raise BadInput(f"{where} {given}; allowed: {allowed}") from None
    data = {name: _series(cells, is_number=name in numbers) for name, cells in columns.items()}
    return pd.DataFrame(data)


def _is_missing(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) < 10 and value.strip().lower() in _MISSING
    return value is None or (isinstance(value, float | Decimal) and math.isnan(value))


def _label(value: Any) -> str | int | float | bool:
    """Return a cell as the label of a group; raise ValueError where it cannot be one."""
    if isinstance(value, Decimal):
        value = float(value)
    if isinstance(value, int) and abs(value) > _MAX_INT:
        value = str(value)  # raises for too many digits
    if not isinstance(value, str | int | float) or len(str(value)) > MAX_TEXT:
        raise ValueError
    return value


def _series(cells: list[Any], *, is_number: bool) -> pd.Series:
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


def write_table(path: Path, table: pa.Table, *, raw: bool = False) -> None:
    """Write a table to a file; its suffix, one of ``KINDS``, selects the format.

    Parquet keeps every type. A missing value is empty in CSV and null in JSON lines. A measured
    NaN, such as the loss of a diverged run, is ``NaN``. A CSV cell that a spreadsheet would
    evaluate as a formula gets a leading apostrophe, unless ``raw``; ``store.rows`` removes it.
    """
    kind = path.suffix.lower()
    if kind == ".parquet":
        write_parquet(path, table)
        return
    with (
        replacing(path, durable=False) as temporary,
        temporary.open("w", encoding="utf-8", newline="") as file,
    ):
        if kind == ".csv":
            write_csv(file, table, raw=raw)
        else:
            for row in _rows(table):
                plain = {name: _in_json(value) for name, value in row.items()}
                file.write(json.dumps(plain, allow_nan=False, ensure_ascii=False) + "\n")


def write_csv(file: TextIO, table: pa.Table, *, raw: bool = False) -> None:
    """Write a table as CSV to an open file, as ``write_table`` does."""
    in_csv = _in_csv if raw else _without_formula
    rows = csv.writer(file)  # RFC 4180 line ends, so a lone carriage return is quoted
    rows.writerow([in_csv(name) for name in table.schema.names])
    rows.writerows([in_csv(value) for value in row.values()] for row in _rows(table))


def _rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    for batch in table.to_batches(max_chunksize=10_000):
        yield from batch.to_pylist()


def _in_csv(value: Any) -> Any:
    if isinstance(value, list):
        return json.dumps([_in_json(item) for item in value], ensure_ascii=False)
    return _in_json(value)


def _without_formula(value: Any) -> Any:
    cell = _in_csv(value)
    if not isinstance(value, str) or not FORMULA.match(value):
        return cell
    try:
        float(value)
    except ValueError:
        return f"'{cell}"
    return cell


def _in_json(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else str(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, list):
        return [_in_json(item) for item in value]
    return value
