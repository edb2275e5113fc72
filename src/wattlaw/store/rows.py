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
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from wattlaw.common.delimited import DELIMITERS, HEADER_LINES, encoding_of
from wattlaw.common.errors import BadInput
from wattlaw.common.text import quote, shorten
from wattlaw.store.decoded_size import ENCODED, check_decoded_size, unpacked_bytes

if TYPE_CHECKING:
    import pyarrow as pa

MAX_ROWS = 200_000
MAX_COLUMNS = 100_000
#: Most characters of a line, or of a cell of several lines.
_MAX_CHARACTERS = 10_000_000
#: Most cells that are kept of a Parquet file.
_MAX_CELLS, _BATCH_ROWS = 5_000_000, 4096

#: A text that a spreadsheet interprets as a formula (OWASP, CSV Injection), or that is one after
#: apostrophes, such as those that ``store.tables`` writes.
FORMULA = re.compile(r"'*(?:[\t\r\n]|\s*[=+\-@＝＋－＠])")


@dataclass(frozen=True)
class Row:
    line: int  # line of the file, from 1; row number of a Parquet file
    cells: dict[str, Any]
    fault: str | None = None
    more: tuple[int, ...] = ()  # its other lines, where cells have line breaks
    label: str = ""  # the first cell of a CSV file that is not empty


@dataclass(frozen=True)
class Rows:
    columns: tuple[str, ...]  # all columns of the file
    rows: tuple[Row, ...]
    unit: str = "line"  # what ``Row.line`` counts
    header: tuple[int, ...] = ()  # its lines
    left_out: tuple[tuple[int, str], ...] = ()  # lines that are no rows, and why


def read_rows(path: Path, needed: Collection[str] | None = None) -> Rows:
    """Read a CSV (``.csv``), JSON lines (``.jsonl``) or Parquet (``.parquet``) file. Cells of a CSV
    file, also named ``.tsv`` or ``.txt``, are separated by ``,``, ``;``, tabs or ``|``. Its header
    is the one of the first lines that has most of the ``needed`` columns. The cells of these are
    kept, None for all; one may be missing. Raises ``BadInput`` if the file has not the format of
    its suffix, has more than ``MAX_ROWS`` rows, or a needed column occurs twice or has a type other
    than numbers, texts and dates."""
    readers = {".csv": _csv, ".tsv": _csv, ".txt": _csv, ".jsonl": _json_lines,
               ".parquet": _parquet}  # fmt: skip
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
        raise BadInput(
            f"{path}: not a table: not {error.encoding.upper()} text (byte {error.start}); convert "
            "text first, for instance with: iconv -f WINDOWS-1252 -t UTF-8"
        ) from None
    except PermissionError:
        raise
    except (ValueError, OSError) as error:
        raise BadInput(f"{path}: not a table: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    return shorten(" ".join(str(error)[:1000].split()) or type(error).__name__)


def _csv(path: Path, needed: Collection[str] | None) -> Rows:
    before = csv.field_size_limit(_MAX_CHARACTERS)
    try:
        with _open_text(path, newline="") as file:
            texts = _lines(file)
            first = list(itertools.islice(texts, HEADER_LINES))
            delimiter, above, columns = _header(first, needed)
            lines = _Lines(itertools.chain(first, texts))
            reader = csv.reader(lines, delimiter=delimiter)
            left_out: list[tuple[int, str]] = []
            try:
                for _ in range(above):
                    next(reader, None)
                    left_out += [(line, "before the header") for line in lines.take()]
                next(reader, None)
                header = tuple(lines.take())
                rows = _bounded(path, _csv_rows(reader, lines, columns, needed, left_out))
            except csv.Error as error:
                raise ValueError(f"line {reader.line_num:,}: {error}") from None
    finally:
        csv.field_size_limit(before)
    return Rows(columns, rows, header=header, left_out=tuple(left_out))


class _Lines:
    def __init__(self, lines: Iterable[str]) -> None:
        self._lines, self._taken = enumerate(lines, 1), dict[int, str]()

    def take(self) -> dict[int, str]:
        taken, self._taken = self._taken, {}
        return taken

    def __iter__(self) -> Iterator[str]:
        for number, line in self._lines:
            if not line.isspace():
                self._taken[number] = line
            yield line


def _header(first: list[str], needed: Collection[str] | None) -> tuple[str, int, tuple[str, ...]]:
    """Return the delimiter, the number of rows above the header, and the columns. The header has
    most of the needed columns; without any, it is the first row, with the delimiter of most
    cells."""
    wanted = frozenset(needed or ())
    best: tuple[tuple[int, ...], str, int, list[str]] | None = None
    for delimiter in DELIMITERS:
        is_first = True
        with contextlib.suppress(csv.Error):
            for place, cells in enumerate(csv.reader(first, delimiter=delimiter)):
                names = [_text(name) for name in cells]
                found = len(wanted.intersection(names))
                of_first = (is_first and any(names), len(names))
                key = (found, *((-place, 0) if found else of_first))
                is_first = is_first and not any(names)
                if best is None or key > best[0]:
                    best = key, delimiter, place, names
    if best is None:
        return ",", 0, ()
    _, delimiter, place, names = best
    _check_columns(names, {*filter(None, names)} if needed is None else wanted)
    return delimiter, place, tuple(names)


def _csv_rows(
    reader: Any,
    lines: _Lines,
    columns: Sequence[str],
    needed: Collection[str] | None,
    left_out: list[tuple[int, str]],
) -> Iterator[Row]:
    kept = [(i, name) for i, name in enumerate(columns) if needed is None or name in needed]
    for cells in reader:
        texts = lines.take()
        if not texts:
            continue
        line, *more = texts
        if why := _no_row(cells, len(columns)):
            left_out += [(number, why) for number in texts]
        elif fault := _quote_fault(list(texts.values()), reader.dialect.delimiter, len(columns)):
            yield Row(line, {}, fault, tuple(more))
        elif len(cells) < len(columns) or any(cells[len(columns) :]):
            fault = f"has {len(cells)} cells; the header has {len(columns)}"
            yield Row(line, {}, fault, tuple(more))
        else:
            label = next(cell.strip() for cell in cells if cell and not cell.isspace())
            row = {name: _text(cells[i]) or None for i, name in kept}
            yield Row(line, row, None, tuple(more), label)


def _quote_fault(texts: list[str], delimiter: str, columns: int) -> str | None:
    """Return what is wrong with the quotes of a row: a stray one takes the rows below into a cell,
    where a line that looks like a row is none of a text."""
    if len(texts) < 2:
        return None
    looks_like_row = any(text.count(delimiter) == columns - 1 for text in texts[1:-1])
    if sum(text.count('"') for text in texts) % 2 or (columns > 1 and looks_like_row):
        return f"has an unclosed quote: {len(texts) - 1:,} lines below are in its cell"
    return None


def _no_row(cells: Sequence[str], columns: int) -> str | None:
    texts = [cell.strip() for cell in cells]
    if not any(texts):
        return "all cells are empty"
    if texts[0].startswith("#") and len(cells) != columns:
        return "a comment"
    if all(set(text) <= {*"-:=+"} for text in texts) and any(len(text) > 2 for text in texts):
        return "a line of dashes"
    return None


def _open_text(path: Path, newline: str | None = None) -> TextIO:
    with path.open("rb") as file:
        encoding = encoding_of(file.read(1024))
    return path.open(encoding=encoding, newline=newline)


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
        raise _too_many(path, f"more than {MAX_ROWS:,}")
    return kept


def _too_many(path: Path, given: str) -> BadInput:
    return BadInput(f"{path}: given {given} rows; allowed: at most {MAX_ROWS:,} in one table")


def _check_columns(names: Sequence[str], needed: Collection[str]) -> None:
    if len(names) > MAX_COLUMNS:
        raise ValueError(f"more than {MAX_COLUMNS:,} columns")
    for name, count in Counter(names).items():
        if count > 1 and name in needed:
            raise ValueError(f"column {quote(name)} occurs twice; rename one of them")


def _json_lines(path: Path, needed: Collection[str] | None) -> Rows:
    columns: dict[str, None] = {}
    with _open_text(path) as file:
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


def _parquet(path: Path, needed: Collection[str] | None) -> Rows:
    import pyarrow.parquet as pq

    with path.open("rb"):
        pass  # raises the clear error of the operating system
    try:
        with pq.ParquetFile(path) as file:
            names = tuple(file.schema_arrow.names)
            _check_columns(names, names)
            if file.metadata.num_rows > MAX_ROWS:
                raise _too_many(path, f"{file.metadata.num_rows:,}")
            fields = [f for f in file.schema_arrow if needed is None or f.name in needed]
            for field in fields:
                if not _is_plain(field.type):
                    column = f"column {quote(field.name)} is {shorten(str(field.type), 60)}"
                    allowed = "numbers, texts, dates, true and false"
                    raise BadInput(f"{path}: {column}; allowed: {allowed}")
            if (cells := file.metadata.num_rows * len(fields)) > _MAX_CELLS:
                raise BadInput(f"{path}: {cells:,} cells; allowed: at most {_MAX_CELLS:,}")
        kept = [field.name for field in fields]
        most_bytes = unpacked_bytes(path.stat().st_size, ENCODED)
        check_decoded_size([path], kept, most_bytes, batch_rows=_BATCH_ROWS, texts_once=True)
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
    plain = (types.is_integer, types.is_floating, types.is_decimal, types.is_boolean,
             types.is_timestamp, types.is_date, types.is_null)  # fmt: skip
    return any(is_kind(kind) for is_kind in plain) or _is_text(kind)


def _is_text(kind: "pa.DataType") -> bool:
    from pyarrow import types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))
