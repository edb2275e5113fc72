"""Writes tables to CSV, Parquet and JSON-lines files."""

import csv
import json
import math
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa

from wattlaw.common.files import replacing, write_parquet
from wattlaw.store.rows import FORMULA

#: Suffixes of the files that ``write_table`` writes and ``rows.read_rows`` reads.
KINDS = (".csv", ".parquet", ".jsonl")


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
