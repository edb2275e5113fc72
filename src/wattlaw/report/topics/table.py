"""A table of a report: text in columns, with a limit on the rows."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from wattlaw.formatting import MISSING, interval, no_breaks, number, printable, with_interval

MAX_ROWS = 60
#: A longer table is folded until the reader opens it.
MAX_OPEN_ROWS = 12
#: A column whose longest text exceeds these lengths gets a minimum width.
_LONG, _LONGEST = 100, 300
#: A column of texts up to this length does not break lines.
_SHORT = 16


@dataclass(frozen=True)
class Column:
    """A heading, and the function that returns the cell of a record."""

    heading: str
    cell: Callable[[Any], str]
    numeric: bool = True


@dataclass(frozen=True)
class Table:
    """Text only: the template escapes it. The first cell of a row is its heading."""

    name: str
    title: str
    headings: tuple[str, ...]
    classes: tuple[str, ...]  # CSS class of each column: n(umeric), short, long, longest, or none
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    omitted: int = 0  # rows
    command: str = ""  # writes all rows
    is_open: bool = True

    kind = "table"


def build_table(
    name: str,
    title: str,
    columns: Sequence[Column],
    records: Iterable[Any],
    *,
    note: str = "",
    command: str = "",
    max_rows: int = MAX_ROWS,
    rank: Callable[[Any], Any] | None = None,
    max_open_rows: int = MAX_OPEN_ROWS,
) -> Table | None:
    """Return the records as a table, or None where there are none.

    Columns without any value are left out, except the first. Of more than ``max_rows`` records,
    those with the lowest ``rank`` are shown, in their order.
    """
    records = list(records)
    if not records:
        return None
    order = list(range(len(records)))
    if rank is not None and len(records) > max_rows:
        order.sort(key=lambda i: rank(records[i]))
    shown = [records[i] for i in sorted(order[:max_rows])]
    rows = [[_cell(column, record) for column in columns] for record in shown]
    kept = [j for j in range(len(columns)) if j == 0 or any(row[j] != MISSING for row in rows)]
    return Table(
        name=name,
        title=title,
        headings=tuple(printable(columns[j].heading) for j in kept),
        classes=tuple(_css_class(columns[j], [row[j] for row in rows]) for j in kept),
        rows=tuple(tuple(row[j] for j in kept) for row in rows),
        note=note,
        omitted=len(records) - len(shown),
        command=command,
        is_open=len(shown) <= max_open_rows,
    )


def _cell(column: Column, record: Any) -> str:
    text = printable(column.cell(record))
    return no_breaks(text) if column.numeric else text


def _css_class(column: Column, cells: list[str]) -> str:
    longest = max(map(len, cells))
    if column.numeric:
        return "n"
    if longest <= _SHORT:
        return "short"
    return "longest" if longest > _LONGEST else "long" if longest > _LONG else ""


def text_column(heading: str, cell: str | Callable[[Any], Any]) -> Column:
    """Return a column of text: a key of the records, or a function of a record."""
    value = itemgetter(cell) if isinstance(cell, str) else cell
    return Column(heading, lambda record: printable(value(record)), numeric=False)


def number_column(heading: str, key: str, digits: int = 3) -> Column:
    """Return a column of numbers by their key."""
    return Column(heading, lambda row: number(row[key], digits))


def interval_column(heading: str, key: str, digits: int = 3) -> Column:
    """Return a column of intervals from ``<key>_low`` to ``<key>_high``."""
    return Column(heading, lambda row: interval(row[f"{key}_low"], row[f"{key}_high"], digits))


def estimate_column(heading: str, key: str) -> Column:
    """Return a column of numbers with their intervals, from ``<key>_low`` to ``<key>_high``."""
    return Column(
        heading, lambda row: with_interval(row[key], row[f"{key}_low"], row[f"{key}_high"])
    )
