"""Reads text files of other tools: lines of bounded length, CSV rows with line numbers, times."""

import csv
import io
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any

from wattlaw.errors import BadInput
from wattlaw.files import open_regular, read_input
from wattlaw.text import quote

#: Most characters of a line.
MAX_LINE = 1_000_000
#: Largest file that is read as one piece.
MAX_BYTES = 256 * 2**20
#: Most lists and mappings of a JSON file: each takes up to thirty times its text in memory.
_MAX_CONTAINERS = 2_000_000
#: Most readings of one file: eight GPUs, ten times a second, for a day.
MAX_READINGS = 8_000_000
#: The range of times: 1970 to 2116, as for our own samples.
MAX_NS = 2**62
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
#: Texts of tools for a value that they do not have.
MISSING = frozenset({
    "", "n/a", "[n/a]", "na", "nan", "none", "null", "[not supported]", "not supported",
    "[unknown error]", "[gpu is lost]", "[insufficient permissions]", "unknown",
})  # fmt: skip


def lines_of(path: Path, *, only_complete: bool = False) -> Iterator[tuple[int, str]]:
    """Yield the lines of a text file with their numbers from 1, without the line's end.

    With ``only_complete`` a last line without an end is left out: its writer was killed.
    Raises ``BadInput`` if the file cannot be read, is not UTF-8 text or has a very long line.
    """
    try:
        with open_regular(path) as binary, io.TextIOWrapper(binary, encoding="utf-8-sig") as file:
            number = 0
            while line := file.readline(MAX_LINE + 1):
                number += 1
                if len(line) > MAX_LINE:
                    raise BadInput(f"{path}: line {number:,} has more than {MAX_LINE:,} characters")
                if only_complete and not line.endswith("\n"):
                    return
                yield number, line.rstrip("\r\n")
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from None


def header_of(head: bytes) -> set[str]:
    """Return the columns of a CSV file that begins with ``head``."""
    first = head.decode("utf-8", "replace").lstrip("\ufeff").split("\n", 1)[0]
    return {cell.strip() for cell in first.split(",")}


def left_out(**counts: int) -> tuple[str, ...]:
    """Return a note for each kind of thing that is left out: ``torn_lines=3``."""
    known = ((what.replace("_", " "), count) for what, count in counts.items() if count)
    return tuple(f"{count:,} {what} left out" for what, count in known)


def csv_rows(
    path: Path, *, skip: str = "#", only_complete: bool = False
) -> Iterator[tuple[int, list[str]]]:
    """Yield the cells of each line, stripped; empty lines and comments are left out.

    No cell has a line break, so that a torn line never takes the next one with it.
    """
    for number, line in lines_of(path, only_complete=only_complete):
        if not line.strip() or (skip and line.startswith(skip)):
            continue
        try:
            (cells,) = csv.reader([line.replace("\0", "")], skipinitialspace=True)
        except (csv.Error, ValueError):
            cells = line.split(",")
        yield number, [cell.strip() for cell in cells]


def dict_rows(path: Path, required: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the rows of a CSV file with one header as mappings; torn lines are left out.

    Raises ``BadInput`` if the header lacks a required column or has one twice.
    """
    rows = csv_rows(path)
    _, header = next(rows, (0, []))
    for name in required:
        if header.count(name) != 1:
            raise BadInput(f"{path}: column {name} occurs {header.count(name)} times; allowed: 1")
    for number, cells in rows:
        if cells != header and len(cells) == len(header):
            yield number, dict(zip(header, cells, strict=True))


def read_json(path: Path) -> Any:
    """Return the content of a JSON file; raise ``BadInput`` if it is none or very large."""
    content = read_input(path, MAX_BYTES)
    if content.count(b"{") + content.count(b"[") > _MAX_CONTAINERS:
        raise BadInput(f"{path}: more than {_MAX_CONTAINERS:,} lists and objects")
    try:
        return json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        raise BadInput(f"{path}: not a JSON file in UTF-8") from None


def number(text: Any) -> float | None:
    """Return a finite number, from a number or a text without a unit; None where it is none."""
    if isinstance(text, str):
        text = text.strip()
        value = float(text) if _NUMBER.fullmatch(text) else math.nan
    elif isinstance(text, bool) or not isinstance(text, int | float):
        return None
    else:
        try:
            value = float(text)
        except OverflowError:
            return None
    return value if math.isfinite(value) else None


def count(value: Any, least: int = 0, most: int = 2**53) -> int | None:
    """Return a whole number in a range; None where it is none."""
    known = number(value)
    return (
        int(known) if known is not None and known == int(known) and least <= known <= most else None
    )


def positive(value: Any) -> float | None:
    """Return a finite number above 0; None where it is none."""
    known = number(value)
    return known if known is not None and known > 0 else None


def text_in(values: Mapping[str, Any], name: str) -> str | None:
    """Return a text of a mapping, stripped and of at most 200 characters; None without one."""
    value = values.get(name)
    if not isinstance(value, str) or value.strip().lower() in MISSING:
        return None
    return value.strip()[:200]


def moment_ns(text: str, zone: tzinfo) -> int | None:
    """Return a time as nanoseconds since 1970; None where the text is none.

    It is ISO 8601 or ``2024/05/31 10:39:13.123``, where ``zone`` is that of a time without one, or
    a number of seconds since 1970.
    """
    seconds = number(text)
    if seconds is not None:
        return ns_of(seconds)
    text = text.strip().replace("/", "-")
    match = re.fullmatch(r"(.{19})([.,]\d{1,9})?\s*(Z|[+-]\d\d:?\d\d)?", text)
    if match is None:
        return None
    try:
        whole = datetime.fromisoformat(match[1])
        if match[3]:
            whole = datetime.fromisoformat(match[1] + match[3])
        elif whole.tzinfo is None:
            whole = whole.replace(tzinfo=zone)
        elapsed = whole.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    except (ValueError, OverflowError):
        return None
    fraction = (match[2] or "")[1:].ljust(9, "0")
    ns = (elapsed.days * 86_400 + elapsed.seconds) * 10**9 + int(fraction)
    return ns if 0 <= ns < MAX_NS else None


def ns_of(seconds: float) -> int | None:
    """Return seconds since 1970 as nanoseconds; None outside the range of times."""
    return round(seconds * 1e6) * 1000 if 0 <= seconds < MAX_NS * 1e-9 else None


def moment(path: Path, line: int, text: str, zone: tzinfo) -> int:
    """Return a time as ``moment_ns`` does; raise ``BadInput`` where the text is none."""
    ns = moment_ns(text, zone)
    if ns is None:
        raise BadInput(
            f"{path}: line {line}: {quote(text)} is no time; allowed: 2026-01-31T12:00:00, with or "
            "without a zone, or seconds since 1970"
        )
    return ns
