"""A user's table row by row, each with where it stands in its file, as it is: nothing is guessed.

A cell of a CSV file is text; an empty one, and null in the other kinds, is missing.
"""

import contextlib
import csv
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from wattlaw.errors import BadInput, one_line

#: A text that a spreadsheet takes for a formula (OWASP, CSV Injection), or that is one after
#: apostrophes: these are told apart from those that ``store.tables`` writes.
FORMULA = re.compile(r"'*(?:[\t\r\n]|\s*[=+\-@＝＋－＠])")


@dataclass(frozen=True)
class Row:
    """One row, or why there is none at this place."""

    line: int  # of the file, from 1; of a Parquet file, the number of the row
    cells: dict[str, Any]
    fault: str | None = None


@dataclass(frozen=True)
class Rows:
    """A table that was read."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    place: str = "line"  # what ``Row.line`` counts


def read_rows(path: Path) -> Rows:
    """Read a CSV (``.csv``), JSON lines (``.jsonl``) or Parquet (``.parquet``) file.

    Raises
    ------
    BadInput
        The file is not there, has another ending, or is not of the kind that its ending says.
    """
    readers = {".csv": _csv, ".jsonl": _json_lines, ".parquet": _parquet}
    kind = path.suffix.lower()
    if kind not in readers:
        raise BadInput(f"{path}: unknown ending {kind!a}; allowed: {', '.join(readers)}")
    try:
        return readers[kind](path)
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file") from None
    except PermissionError:
        raise
    except (OSError, UnicodeDecodeError, ValueError, csv.Error) as error:
        raise BadInput(f"{path}: not a table: {one_line(error)[:200]}") from None


def _csv(path: Path) -> Rows:
    with path.open(encoding="utf-8-sig", newline="") as file, _cells_of_any_length():
        reader = csv.reader(file)
        columns = tuple(_text(name) for name in next(reader, []))
        twice = next((name for name in columns if columns.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"column {twice!a} is there twice")
        return Rows(columns, tuple(_csv_rows(reader, columns)))


def _csv_rows(reader: Any, columns: tuple[str, ...]) -> Iterator[Row]:
    begins = reader.line_num + 1
    for cells in reader:
        line, begins = begins, reader.line_num + 1
        if not cells:
            continue
        if len(cells) != len(columns):
            yield Row(line, {}, f"has {len(cells)} cells; the header has {len(columns)}")
            continue
        values = (_text(cell) or None for cell in cells)
        yield Row(line, dict(zip(columns, values, strict=True)))


def _text(cell: str) -> str:
    """Return a cell without the apostrophe that keeps spreadsheets from taking it for a formula."""
    return cell.removeprefix("'").strip() if FORMULA.match(cell) else cell.strip()


@contextlib.contextmanager
def _cells_of_any_length() -> Iterator[None]:
    """Let a cell that is too long be one row's fault, not the file's."""
    before = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _json_lines(path: Path) -> Rows:
    with path.open(encoding="utf-8-sig") as file:
        rows = tuple(_json_rows(file))
    if rows and all(row.fault for row in rows):
        raise ValueError(f"line {rows[0].line}: {rows[0].fault}")
    columns = dict.fromkeys(name for row in rows for name in row.cells)
    return Rows(tuple(columns), rows)


def _json_rows(file: TextIO) -> Iterator[Row]:
    for line, text in enumerate(file, 1):
        if not text.strip():
            continue
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            yield Row(line, {}, "is not JSON")
            continue
        if isinstance(found, dict):
            yield Row(line, found)
        else:
            yield Row(line, {}, "is not a JSON object")


def _parquet(path: Path) -> Rows:
    import pyarrow.parquet as pq

    table = pq.read_table(path, partitioning=None)
    names = table.schema.names
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"column {twice!a} is there twice")
    rows = (Row(number, cells) for number, cells in enumerate(table.to_pylist(), 1))
    return Rows(tuple(names), tuple(rows), "row")
