"""Writes tables to CSV, Parquet and JSON-lines files."""

import csv
import itertools
import json
import math
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa

from wattlaw.common.files import replacing, write_parquet
from wattlaw.store.rows import FORMULA

#: Suffixes of the files that ``write_table`` writes.
KINDS = (".csv", ".parquet", ".jsonl")


def write_table(path: Path, table: pa.Table) -> None:
    """Write a table to a file; its suffix, one of ``KINDS``, selects the format. A missing value is
    empty in CSV and null in JSON lines; a measured NaN, such as the loss of a diverged run, is
    ``NaN``. A CSV cell that a spreadsheet would evaluate as a formula gets a leading apostrophe;
    ``store.rows`` removes it."""
    kind = path.suffix.lower()
    if kind == ".parquet":
        write_parquet(path, table)
        return
    with (
        replacing(path, durable=False) as temporary,
        temporary.open("w", encoding="utf-8", newline="") as file,
    ):
        if kind == ".csv":
            write_csv(file, table)
            return
        for row in _rows(table):
            file.write(json.dumps(row, allow_nan=False, ensure_ascii=False) + "\n")


def write_csv(file: TextIO, table: pa.Table) -> None:
    rows = csv.writer(file)  # RFC 4180 line ends, so a lone carriage return is quoted
    for cells in itertools.chain([table.schema.names], (row.values() for row in _rows(table))):
        rows.writerow([_cell(value) for value in cells])


def _rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    for batch in table.to_batches(max_chunksize=10_000):
        for row in batch.to_pylist():
            yield {name: _plain(value) for name, value in row.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else str(value)
    if isinstance(value, datetime):
        return value.isoformat()
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _cell(value: Any) -> Any:
    if isinstance(value, list):
        return json.dumps(value, ensure_ascii=False)
    if not isinstance(value, str) or not FORMULA.match(value):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value
