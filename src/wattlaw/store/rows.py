"""Reads a user's table row by row, each with its line number; no types are guessed.

Cells of a CSV file are text. Empty cells of a CSV file, and nulls of JSON lines, are missing. Only
the columns that are needed are kept.
"""

import csv
import itertools
import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from wattlaw.common.delimited import DELIMITERS, encoding_of
from wattlaw.common.errors import BadInput
from wattlaw.common.text import quote, shorten

MAX_ROWS = 200_000
MAX_COLUMNS = 100_000
#: Most characters of a line, or of a cell of several lines.
_MAX_CHARACTERS = 10_000_000

#: A text that a spreadsheet interprets as a formula (OWASP, CSV Injection), or that is one after
#: apostrophes, such as those that ``store.tables`` writes.
FORMULA = re.compile(r"'*(?:[\t\r\n]|\s*[=+\-@＝＋－＠])")


@dataclass(frozen=True)
class Row:
    line: int  # its first line in the file, from 1
    cells: dict[str, Any]
    fault: str | None = None
    label: str = ""  # the first cell of a CSV file that is not empty


@dataclass(frozen=True)
class Rows:
    columns: tuple[str, ...]  # all columns of the file
    rows: tuple[Row, ...]
    header: tuple[int, ...] = ()  # its lines
    left_out: tuple[tuple[int, str], ...] = ()  # lines that are no rows, and why


def read_rows(path: Path, needed: Collection[str] | None = None) -> Rows:
    """Read a CSV (``.csv``) or JSON-lines (``.jsonl``) file. Cells of a CSV file, also named
    ``.tsv`` or ``.txt``, are separated by ``,``, ``;``, tabs or ``|``, by that which gives most of
    the ``needed`` columns. The cells of these are kept, None for all; one may be missing. Raises
    ``BadInput`` if the file has not the format of its suffix, has more than ``MAX_ROWS`` rows, or a
    needed column occurs twice."""
    readers = {".csv": _csv, ".tsv": _csv, ".txt": _csv, ".jsonl": _json_lines}
    kind = path.suffix.lower()
    if kind not in readers:
        raise BadInput(f"{path}: unknown suffix {quote(kind)}; allowed: {', '.join(readers)}")
    try:
        if path.exists() and not path.is_file():
            raise BadInput(f"{path}: not a plain file")
        with path.open("rb") as file:
            encoding = encoding_of(file.read(1024))
        with path.open(encoding=encoding, newline="" if readers[kind] is _csv else None) as text:
            return readers[kind](path, text, needed)
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file") from None
    except UnicodeDecodeError as error:
        raise BadInput(
            f"{path}: not a table: not {error.encoding.upper()} text (byte {error.start}); convert "
            "text first, for instance with: iconv -f WINDOWS-1252 -t UTF-8"
        ) from None
    except PermissionError:
        raise
    except (ValueError, OSError) as error:
        reason = shorten(" ".join(str(error)[:1000].split()) or type(error).__name__)
        raise BadInput(f"{path}: not a table: {reason}") from None


def _csv(path: Path, file: TextIO, needed: Collection[str] | None) -> Rows:
    before = csv.field_size_limit(_MAX_CHARACTERS)
    try:
        lines = _lines(file)
        first = next(lines, "")
        # Of delimiters that find as many needed columns, the one with most cells.
        headers = {mark: next(csv.reader([first], delimiter=mark), []) for mark in DELIMITERS}
        found = {
            mark: (len({*(needed or ())}.intersection(map(_text, cells))), len(cells))
            for mark, cells in headers.items()
        }
        delimiter = max(DELIMITERS, key=lambda mark: found[mark])
        reader = csv.reader(itertools.chain([first], lines), delimiter=delimiter)
        left_out: list[tuple[int, str]] = []
        try:
            columns = tuple(_text(name) for name in next(reader, ()))
            _check_columns(columns, {*filter(None, columns)} if needed is None else needed)
            header = tuple(range(1, reader.line_num + 1))
            rows = _bounded(path, _csv_rows(reader, columns, needed, left_out))
        except csv.Error as error:
            raise ValueError(f"line {reader.line_num:,}: {error}") from None
    finally:
        csv.field_size_limit(before)
    return Rows(columns, rows, header, tuple(left_out))


def _csv_rows(
    reader: Any,
    columns: Sequence[str],
    needed: Collection[str] | None,
    left_out: list[tuple[int, str]],
) -> Iterator[Row]:
    kept = [(i, name) for i, name in enumerate(columns) if needed is None or name in needed]
    end = reader.line_num
    for cells in reader:
        line, end = end + 1, reader.line_num
        if not cells:
            continue
        if end > line:  # a stray quote takes the lines below it into a cell
            fault = f"has a line break in a cell, or an unclosed quote; it ends on line {end:,}"
            yield Row(line, {}, fault)
        elif why := _no_row(cells, len(columns)):
            left_out.append((line, why))
        elif len(cells) < len(columns) or any(cells[len(columns) :]):
            fault = f"has {len(cells)} cells; the header has {len(columns)}"
            yield Row(line, {}, fault)
        else:
            label = next(cell.strip() for cell in cells if cell and not cell.isspace())
            yield Row(line, {name: _text(cells[i]) or None for i, name in kept}, label=label)


def _no_row(cells: Sequence[str], columns: int) -> str | None:
    texts = [cell.strip() for cell in cells]
    if not any(texts):
        return "all cells are empty"
    if texts[0].startswith("#") and len(cells) != columns:
        return "a comment"
    if all(set(text) <= {*"-:=+"} for text in texts) and any(len(text) > 2 for text in texts):
        return "a line of dashes"
    return None


def _text(cell: str) -> str:
    """Return a cell without the apostrophe that keeps spreadsheets from evaluating it."""
    return cell.removeprefix("'").strip() if FORMULA.match(cell) else cell.strip()


def _lines(file: TextIO) -> Iterator[str]:
    for number, line in enumerate(iter(lambda: file.readline(_MAX_CHARACTERS + 1), ""), 1):
        if len(line) > _MAX_CHARACTERS:
            raise ValueError(f"line {number:,} has more than {_MAX_CHARACTERS:,} characters")
        yield line


def _bounded(path: Path, rows: Iterator[Row]) -> tuple[Row, ...]:
    kept = tuple(itertools.islice(rows, MAX_ROWS + 1))
    if len(kept) > MAX_ROWS:
        raise BadInput(f"{path}: more than {MAX_ROWS:,} rows; allowed: at most so many in a table")
    return kept


def _check_columns(names: Sequence[str], needed: Collection[str]) -> None:
    if len(names) > MAX_COLUMNS:
        raise ValueError(f"more than {MAX_COLUMNS:,} columns")
    for name, count in Counter(names).items():
        if count > 1 and name in needed:
            raise ValueError(f"column {quote(name)} occurs twice; rename one of them")


def _json_lines(path: Path, file: TextIO, needed: Collection[str] | None) -> Rows:
    columns: dict[str, None] = {}
    rows = _bounded(path, _json_rows(file, needed, columns))
    if rows and all(row.fault for row in rows):
        raise ValueError(f"line {rows[0].line}: {rows[0].fault}")
    return Rows(tuple(columns), rows)


def _json_rows(
    file: TextIO, needed: Collection[str] | None, columns: dict[str, None]
) -> Iterator[Row]:
    for line, text in enumerate(_lines(file), 1):
        if not text.strip():
            continue
        try:
            cells = json.loads(text)
        except (ValueError, RecursionError):
            yield Row(line, {}, "is not JSON")
            continue
        if not isinstance(cells, dict):
            yield Row(line, {}, "is not a JSON object")
            continue
        columns.update(dict.fromkeys(cells))
        if len(columns) > MAX_COLUMNS:
            raise ValueError(f"more than {MAX_COLUMNS:,} columns")
        yield Row(line, {k: v for k, v in cells.items() if needed is None or k in needed})
