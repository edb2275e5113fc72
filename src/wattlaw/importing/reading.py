"""Reads files of other tools: ``Source`` and its account of rows, numbers and times.

Each row is read, left out with a reason, or rejected.
"""

import io
import json
import math
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from wattlaw.common.delimited import DELIMITERS, HEADER_LINES, encoding_of, split_cells
from wattlaw.common.errors import BadInput
from wattlaw.common.files import open_regular, read_input
from wattlaw.common.formatting import plural
from wattlaw.common.text import join_names
from wattlaw.store.import_tables import RejectedRow
from wattlaw.store.units import PLAIN

T = TypeVar("T")

MAX_LINE = 1_000_000
#: Largest file that is read as one piece.
MAX_BYTES = 256 * 2**20
#: Most lists and mappings of a JSON file: each takes up to thirty times its text in memory.
_MAX_CONTAINERS = 2_000_000
#: Most readings of one file: eight GPUs, ten times a second, for a day.
MAX_READINGS = 8_000_000
#: The range of times: 1970 to 2116, as for our own samples.
MAX_NS = 2**62
#: 1e11 s are in the year 5138, 1e11 ms in 1973.
_EPOCH_SCALES = ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3))
#: A comma in a number that cannot be one between thousands, as in ``12,500``.
_DECIMAL_COMMA = re.compile(
    r"^(?![+-]?[1-9][0-9]{0,2},[0-9]{3}(?![0-9]))([+-]?[0-9]+),([0-9]+)(?=\s*[A-Za-z%]*$)"
)
#: A time with a decimal comma at the beginning of a line of CSV.
_TIME_COMMA = re.compile(
    r"^(\s*(?:\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d|\d{9,10})),(\d{1,9})(?=\s*,)"
)
#: As spreadsheets of several countries write dates; 02/01/2026 has two meanings.
_DAY_FIRST = re.compile(r"^(\d\d)\.(\d\d)\.(\d{4})(?= )")
#: The states of a row; reasons why rows are left out are numbered from ``_FIRST_REASON``.
_NO_ROW, _PENDING, _HEADER, _READ, _REJECTED, _FIRST_REASON = range(6)
_MAX_REASONS = 256 - _FIRST_REASON
OTHER_CELLS = "another number of cells than the header"
NO_TIME = "no time such as 2026-01-31 12:00:00"
MISSING = frozenset({
    "", "n/a", "[n/a]", "na", "nan", "none", "null", "[not supported]", "not supported",
    "[unknown error]", "[gpu is lost]", "[insufficient permissions]", "unknown",
})  # fmt: skip


@dataclass(frozen=True)
class LeftOut:
    reason: str
    count: int
    first: int  # number of the first one, from 1
    unit: str  # what is counted: line, row, entry, job

    def __str__(self) -> str:
        if self.count == 1:
            return f"{self.unit} {self.first:,} left out: {self.reason}"
        counted = plural(self.count, self.unit)
        return f"{counted} left out, the first is {self.unit} {self.first:,}: {self.reason}"


class Account:
    """Counts the rows of a file that were read and those that were left out. The readers of
    ``Source`` add each row; the importer calls ``read``, ``leave_out`` or ``reject`` for it, and
    the last call counts. A row without a call is left out as not used: none is lost unnoticed."""

    def __init__(self) -> None:
        self.unit = "line"
        self.rejected: list[RejectedRow] = []
        self._states = array("B")
        self._reasons: dict[str, int] = {}

    def add(self, row: int) -> None:
        self._set(row, _PENDING)

    def header(self, row: int) -> None:
        self._set(row, _HEADER)

    def read(self, *rows: int) -> None:
        for row in rows:
            self._set(row, _READ)

    def leave_out(self, reason: str, *rows: int) -> None:
        """Count rows as left out; ``reason`` is one text for all rows of a kind, without values."""
        if reason not in self._reasons and len(self._reasons) >= _MAX_REASONS - 1:
            reason = "other reasons"
        state = self._reasons.setdefault(reason, _FIRST_REASON + len(self._reasons))
        for row in rows:
            self._set(row, state)

    def reject(self, row: int, reason: str) -> None:
        """Count a row as rejected: it should have become a run. The exit code is 1."""
        self._set(row, _REJECTED)
        self.rejected.append(RejectedRow(row, reason))

    def is_read(self, row: int) -> bool:
        return row < len(self._states) and self._states[row] == _READ

    @property
    def headers(self) -> list[int]:
        return [int(row) for row in np.flatnonzero(self._array() == _HEADER)]

    @property
    def rows_read(self) -> int:
        return int(np.count_nonzero(self._array() == _READ))

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        known, states = [], self._array()
        for reason, state in {"not used by this format": _PENDING, **self._reasons}.items():
            is_kind = states == state
            if is_kind.any():
                first, count = int(is_kind.argmax()), int(is_kind.sum())
                known.append(LeftOut(reason, count, first, self.unit))
        return tuple(sorted(known, key=lambda each: each.first))

    def texts(self) -> list[str]:
        """Return a line for each reason, for the notes of the runs; one for all rejected rows."""
        texts = [str(each) for each in self.left_out]
        if self.rejected:
            first = min(self.rejected, key=lambda row: row.line)
            count = len({row.line for row in self.rejected})
            texts.append(str(LeftOut(first.reason, count, first.line, self.unit)))
        return texts

    def _set(self, row: int, state: int) -> None:
        missing = row + 1 - len(self._states)
        if missing > 0:
            self._states.frombytes(bytes(missing + len(self._states) // 2))
        self._states[row] = state

    def _array(self) -> Any:
        return np.frombuffer(self._states or b"\0", np.uint8)


@dataclass(frozen=True)
class Line:
    number: int
    header: tuple[str, ...]
    cells: list[str]


class Source:
    """One file that is imported. ``account`` gets each row that the methods yield."""

    def __init__(self, path: Path) -> None:
        self.path, self.account = path, Account()
        self._items = 0

    def lines(self, *, only_complete: bool = False) -> Iterator[tuple[int, str]]:
        """Yield the lines that are not blank, with their numbers from 1. The text is UTF-8, or
        UTF-16 as its first bytes say. With ``only_complete`` a last line without an end
        is left out: its writer was killed. Raises ``BadInput`` if the file cannot be read, is no
        text in these encodings or has a very long line."""
        path, number = self.path, 0
        try:
            with open_regular(path) as binary:
                encoding = encoding_of(binary.read(1024))
                binary.seek(0)
                text = io.TextIOWrapper(binary, encoding=encoding)
                while line := text.readline(MAX_LINE + 1):
                    number += 1
                    if len(line) > MAX_LINE:
                        raise BadInput(
                            f"{path}: line {number:,} has more than {MAX_LINE:,} characters"
                        )
                    if not line.strip():
                        continue
                    self.account.add(number)
                    if only_complete and not line.endswith("\n"):
                        self.account.leave_out("the last line is incomplete", number)
                        return
                    yield number, line.rstrip("\r\n")
        except FileNotFoundError:
            raise BadInput(f"{path}: no such file") from None
        except UnicodeError as error:
            at = f" (byte {error.start:,})" if isinstance(error, UnicodeDecodeError) else ""
            raise BadInput(
                f"{path}: not {encoding.removesuffix('-sig').upper()} text{at}; convert it first, "
                "for instance with: iconv -f WINDOWS-1252 -t UTF-8"
            ) from None
        except OSError as error:
            raise BadInput(f"{path}: cannot be read: {error.strerror}") from None

    def table(
        self, is_header: Callable[[Sequence[str]], bool], *, only_complete: bool = False
    ) -> Iterator[Line]:
        """Yield the rows below each line that is a header. No cell has a line break: a torn line
        never takes the next one with it. Left out are lines before the first header, comments, and
        lines with another number of cells. A decimal comma becomes a point: ``12,5``, but not
        ``12,500``."""
        header: tuple[str, ...] | None = None
        delimiter = ","
        for number, line in self.lines(only_complete=only_complete):
            cells = split_cells(line, delimiter)
            if header is None:
                for delimiter in DELIMITERS:
                    cells = split_cells(line, delimiter)
                    if is_header(cells):
                        break
            if is_header(cells):
                header = tuple(cells)
                self.account.header(number)
            elif header is None:
                self.account.leave_out("before the header", number)
            elif line.startswith("#"):
                self.account.leave_out("a comment", number)
            else:
                if len(cells) != len(header) and delimiter == ",":  # decimal commas
                    by_space = [cell.strip() for cell in line.split(", ")]
                    by_time = split_cells(_TIME_COMMA.sub(r"\1.\2", line))
                    cells = next((c for c in (by_space, by_time) if len(c) == len(header)), [])
                if len(cells) != len(header):
                    self.account.leave_out(OTHER_CELLS, number)
                    continue
                if any("," in cell for cell in cells):
                    cells = [_DECIMAL_COMMA.sub(r"\1.\2", cell) for cell in cells]
                yield Line(number, header, cells)

    def rows(self, required: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
        """Yield the rows below a header that has the ``required`` columns, each of them once."""
        header: tuple[str, ...] = ()
        for line in self.table(lambda cells: {*required} <= {*cells}):
            if line.header is not header:
                header = line.header
                for name in required:
                    if (count := header.count(name)) != 1:
                        raise BadInput(f"{self.path}: column {name} occurs {count} times")
            yield line.number, dict(zip(header, line.cells, strict=True))
        if not self.account.headers:
            raise BadInput(f"{self.path}: no header with the columns {join_names(required)}")

    def head(self, size: int = 65_536) -> str:
        with open_regular(self.path) as file:
            head = file.read(size)
        return head.decode(encoding_of(head), "replace").lstrip()

    def begins_with(self, text: str) -> bool:
        return self.head(1024).startswith(text)

    def json(self) -> Any:
        """Its parts are not rows yet: call ``items`` for the lists that have them."""
        data = read_input(self.path, MAX_BYTES)
        if data.count(b"{") + data.count(b"[") > _MAX_CONTAINERS:
            raise BadInput(f"{self.path}: more than {_MAX_CONTAINERS:,} lists and objects")
        try:
            return json.loads(data.decode(encoding_of(data[:1024])))
        except (ValueError, RecursionError):
            raise BadInput(f"{self.path}: not a JSON file in UTF-8") from None

    def items(self, items: Iterable[T], unit: str) -> Iterator[tuple[int, T]]:
        """Yield the parts of a binary or JSON file, numbered from 1 over all calls."""
        self.account.unit = unit
        for item in items:
            self._items += 1
            self.account.add(self._items)
            yield self._items, item


def headers_in(head: bytes) -> Iterator[set[str]]:
    for line in head.decode("utf-8-sig", "replace").splitlines()[:HEADER_LINES]:
        for delimiter in DELIMITERS:
            yield {*split_cells(line[:MAX_LINE], delimiter)}


def number(value: Any) -> float | None:
    if isinstance(value, str):
        value = value.strip()
        known = float(value) if PLAIN.fullmatch(value) else math.nan
    elif isinstance(value, bool) or not isinstance(value, int | float):
        return None
    else:
        try:
            known = float(value)
        except OverflowError:
            return None
    return known if math.isfinite(known) else None


def count(value: Any, least: int = 0, most: int = 2**53) -> int | None:
    known = number(value)
    if known is None or known != int(known) or not least <= known <= most:
        return None
    return int(known)


def positive(value: Any) -> float | None:
    known = number(value)
    return known if known is not None and known > 0 else None


def text_in(values: Mapping[str, Any], name: str) -> str | None:
    value = values.get(name)
    if not isinstance(value, str) or value.strip().lower() in MISSING:
        return None
    return value.strip()[:200]


def moment_ns(text: str, zone: tzinfo) -> int | None:
    """ISO 8601, ``2024/05/31 10:39:13.123`` or ``31.05.2024 10:39:13``, in ``zone`` if it has none,
    or a number since 1970: seconds, from 1e11, 1e14 and 1e17 on milli-, micro- and nanoseconds.
    None where the text is no time."""
    known = number(text)
    if known is not None:
        scale = next((scale for least, scale in _EPOCH_SCALES if known >= least), 1.0)
        return ns_of(known * scale)
    text = _DAY_FIRST.sub(r"\3-\2-\1", text.strip()).replace("/", "-")
    match = re.fullmatch(r"(.{19})([.,]\d{1,9})?\s*(Z|[+-]\d\d:?\d\d)?", text)
    if match is None:
        return None
    try:
        whole = datetime.fromisoformat(match[1] + (match[3] or ""))
        if whole.tzinfo is None:
            whole = whole.replace(tzinfo=zone)
        elapsed = whole - datetime(1970, 1, 1, tzinfo=UTC)
    except (ValueError, OverflowError):
        return None
    fraction_ns = int((match[2] or "")[1:].ljust(9, "0"))
    ns = (elapsed.days * 86_400 + elapsed.seconds) * 10**9 + fraction_ns
    return ns if 0 <= ns < MAX_NS else None


def ns_of(seconds: float) -> int | None:
    return round(seconds * 1e6) * 1000 if 0 <= seconds < MAX_NS * 1e-9 else None
