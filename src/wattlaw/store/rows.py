"""Reads a user's table row by row, each with its line number; no types are guessed.

Cells of a CSV file are text. Empty cells of a CSV file, and nulls of other files, are missing. A
file is read in pieces of bounded size, and only the columns that are needed are kept.
"""

import contextlib
import csv
import itertools
import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from wattlaw.errors import BadInput
from wattlaw.store.decoded_size import Decoding, check_decoded_size
from wattlaw.text import quote, shorten

if TYPE_CHECKING:
    import pyarrow as pa

#: As many as the runs of the largest study.
MAX_ROWS = 200_000
MAX_COLUMNS = 100_000
#: Most characters of a line, or of a cell of several lines.
_MAX_CHARACTERS = 10_000_000
#: Largest uncompressed size of a Parquet file, and most cells that are kept of it.
_MAX_BYTES, _MAX_CELLS = 500_000_000, 5_000_000
_BATCH_ROWS = 4096

#: A text that a spreadsheet interprets as a formula (OWASP, CSV Injection), or that is one after
#: apostrophes, such as those that ``store.tables`` writes.
FORMULA = re.compile(r"'*(?:[\t\r\n]|\s*[=+\-@＝＋－＠])")


@dataclass(frozen=True)
class Row:
    """One row, or the reason why it cannot be read."""

    line: int  # line of the file, from 1; row number of a Parquet file
    cells: dict[str, Any]
    fault: str | None = None


@dataclass(frozen=True)
class Rows:
    """The rows of a table."""

    columns: tuple[str, ...]  # all columns of the file
    rows: tuple[Row, ...]
    unit: str = "line"  # what ``Row.line`` counts


def read_rows(path: Path, needed: Collection[str] | None = None) -> Rows:
    """Read a CSV (``.csv``), JSON lines (``.jsonl``) or Parquet (``.parquet``) file.

    It keeps the cells of the ``needed`` columns, None for all; one may be missing. Raises
    ``BadInput`` if the file is missing, has an unknown suffix or not the format of its suffix, has
    more than ``MAX_ROWS`` rows, or a needed column has a type other than numbers, texts and dates.
    """
    readers = {".csv": _csv, ".jsonl": _json_lines, ".parquet": _parquet}
    kind = path.suffix.lower()
    if kind not in readers:
        raise BadInput(f"{path}: unknown suffix {quote(kind)}; allowed: {', '.join(readers)}")
    try:
        if path.exists() and not path.is_file():
            raise BadInput(f"{path}: not a plain file")
        return readers[kind](path, needed)
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: not a table: not UTF-8 text (byte {error.start})") from None
    except PermissionError:
        raise
    except (ValueError, OSError) as error:
        raise BadInput(f"{path}: not a table: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    return shorten(" ".join(str(error)[:1000].split()) or type(error).__name__)


def _csv(path: Path, needed: Collection[str] | None) -> Rows:
    with path.open(encoding="utf-8-sig", newline="") as file, _long_cells():
        reader = csv.reader(_lines(file))
        try:
            columns = _distinct([_text(name) for name in next(reader, [])])
            return Rows(columns, _bounded(path, _csv_rows(reader, columns, needed)))
        except csv.Error as error:
            raise ValueError(f"line {reader.line_num:,}: {error}") from None


def _csv_rows(reader: Any, columns: Sequence[str], needed: Collection[str] | None) -> Iterator[Row]:
    kept = [(i, name) for i, name in enumerate(columns) if needed is None or name in needed]
    begins = reader.line_num + 1
    for cells in reader:
        line, begins = begins, reader.line_num + 1
        if not cells:
            continue
        if len(cells) != len(columns):
            yield Row(line, {}, f"has {len(cells)} cells; the header has {len(columns)}")
            continue
        yield Row(line, {name: _text(cells[i]) or None for i, name in kept})


def _text(cell: str) -> str:
    """Return a cell without the apostrophe that keeps spreadsheets from evaluating it."""
    return cell.removeprefix("'").strip() if FORMULA.match(cell) else cell.strip()


@contextlib.contextmanager
def _long_cells() -> Iterator[None]:
    before = csv.field_size_limit(_MAX_CHARACTERS)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _lines(file: TextIO) -> Iterator[str]:
    """Yield the lines of a text file; an extremely long line is an error."""
    for number, line in enumerate(iter(lambda: file.readline(_MAX_CHARACTERS + 1), ""), 1):
        if len(line) > _MAX_CHARACTERS:
            raise ValueError(f"line {number:,} has more than {_MAX_CHARACTERS:,} characters")
        yield line


def _bounded(path: Path, rows: Iterator[Row]) -> tuple[Row, ...]:
    kept = tuple(itertools.islice(rows, MAX_ROWS + 1))
    if len(kept) > MAX_ROWS:
        raise _too_many(path)
    return kept


def _too_many(path: Path, count: int | None = None) -> BadInput:
    given = f"more than {MAX_ROWS:,}" if count is None else f"{count:,}"
    return BadInput(f"{path}: given {given} rows; allowed: at most {MAX_ROWS:,} in one table")


def _distinct(columns: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of a table; raise ValueError if they are too many or not unique."""
    if len(columns) > MAX_COLUMNS:
        raise ValueError(f"more than {MAX_COLUMNS:,} columns")
    twice = next((name for name, count in Counter(columns).items() if count > 1), None)
    if twice is not None:
        raise ValueError(f"column {quote(twice)} occurs twice")
    return tuple(columns)


def _json_lines(path: Path, needed: Collection[str] | None) -> Rows:
    columns: dict[str, None] = {}
    with path.open(encoding="utf-8-sig") as file:
        rows = _bounded(path, _json_rows(file, needed, columns))
    if rows and all(row.fault for row in rows):
        raise ValueError(f"line {rows[0].line}: {rows[0].fault}")
    return Rows(tuple(columns), rows)


def _json_rows(
    file: TextIO, needed: Collection[str] | None, columns: dict[str, None]
) -> Iterator[Row]:
    """Yield rows, and add the columns of each to ``columns``."""
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


def _parquet(path: Path, needed: Collection[str] | None) -> Rows:
    import pyarrow.parquet as pq

    with path.open("rb"):
        pass  # raises the clear error of the operating system
    try:
        with pq.ParquetFile(path) as file:
            names = _distinct(file.schema_arrow.names)
            if file.metadata.num_rows > MAX_ROWS:
                raise _too_many(path, file.metadata.num_rows)
            fields = [f for f in file.schema_arrow if needed is None or f.name in needed]
            for field in fields:
                if not _is_plain(field.type):
                    column = f"column {quote(field.name)} is {shorten(str(field.type), 60)}"
                    allowed = "numbers, texts, dates, true and false"
                    raise BadInput(f"{path}: {column}; allowed: {allowed}")
            _check_size(path, file.metadata, len(fields))
        kept = [field.name for field in fields]
        check_decoded_size([path], Decoding(kept, _BATCH_ROWS, texts_once=True), _MAX_BYTES)
        texts = [field.name for field in fields if _is_text(field.type)]
        # Dictionaries keep a long text that many rows share in memory once.
        with pq.ParquetFile(path, read_dictionary=texts) as file:
            rows = _bounded(path, _parquet_rows(file, kept))
    except BadInput:
        raise
    except MemoryError:
        raise BadInput(f"{path}: not a table: there is not enough memory to read it") from None
    except Exception as error:  # pyarrow raises many types for damaged files
        raise ValueError(_reason(error)) from None
    return Rows(names, rows, "row")


def _parquet_rows(file: Any, names: Sequence[str]) -> Iterator[Row]:
    number = 0
    for batch in file.iter_batches(_BATCH_ROWS, columns=list(names)):
        columns = [_values(name, batch.column(name)) for name in names]
        for i in range(batch.num_rows):
            number += 1
            yield Row(number, {n: values[i] for n, values in zip(names, columns, strict=True)})
    if not names:
        for number in range(1, file.metadata.num_rows + 1):
            yield Row(number, {})


def _values(name: str, column: "pa.Array") -> list[Any]:
    import pyarrow as pa

    if pa.types.is_float16(column.type):
        column = column.cast(pa.float32())
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        return [_date(name, value) for value in column]
    try:
        if not pa.types.is_dictionary(column.type):
            return column.to_pylist()  # type: ignore[no-any-return]
        texts = column.dictionary.to_pylist()
    except UnicodeDecodeError:
        raise ValueError(f"column {quote(name)}: not UTF-8 text") from None
    return [None if index is None else texts[index] for index in column.indices.to_pylist()]


def _date(name: str, value: "pa.Scalar") -> str | None:
    try:
        date = value.as_py()
        return None if date is None else str(date.isoformat())
    except (ValueError, OverflowError, LookupError):
        raise ValueError(
            f"column {quote(name)}: a time outside the years 1 to 9999 or of an unknown zone"
        ) from None


def _is_plain(kind: "pa.DataType") -> bool:
    from pyarrow import types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
    is_date = types.is_timestamp(kind) or types.is_date(kind)
    return is_number or is_date or types.is_boolean(kind) or types.is_null(kind) or _is_text(kind)


def _is_text(kind: "pa.DataType") -> bool:
    from pyarrow import types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _check_size(path: Path, metadata: Any, columns: int) -> None:
    """Reject a file that says that it is very large, before any of it is read.

    Row groups are counted, not columns: pyarrow aborts on the metadata of a damaged column.
    """
    groups = range(metadata.num_row_groups)
    total = sum(metadata.row_group(group).total_byte_size for group in groups)
    if total > _MAX_BYTES:
        raise BadInput(f"{path}: {total:,} bytes uncompressed; allowed: at most {_MAX_BYTES:,}")
    if (cells := metadata.num_rows * columns) > _MAX_CELLS:
        raise BadInput(f"{path}: {cells:,} cells; allowed: at most {_MAX_CELLS:,} in one table")
