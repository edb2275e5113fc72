"""A table of a report: text in columns, cut where it is too long for a page."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from wattlaw.formatting import NONE, text, unbroken

#: More rows than these are not read on a page.
MOST = 60
#: A table up to this length stands open.
OPEN = 12
#: A column with a text beyond these lengths is given room.
_LONG, _LONGEST = 100, 300
#: A column of texts up to this length keeps each on one line.
_SHORT = 16
Record = dict[str, Any]


@dataclass(frozen=True)
class Column:
    """One column: its heading, and its cell of a record."""

    heading: str
    cell: Callable[[Any], str]
    numeric: bool = True


@dataclass(frozen=True)
class Table:
    """Text only: the template escapes it. The first cell of a row is its heading."""

    name: str
    title: str
    headings: tuple[str, ...]
    looks: tuple[str, ...]  # of each column: n(umeric), short, long, longest, or none
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    left_out: int = 0
    command: str = ""  # that writes all rows
    is_open: bool = True  # else it opens when asked to, and in print

    kind = "table"


def make(
    name: str,
    title: str,
    columns: Sequence[Column],
    records: Iterable[Any],
    *,
    note: str = "",
    command: str = "",
    most: int = MOST,
    rank: Callable[[Any], Any] | None = None,
    most_open: int = OPEN,
) -> Table | None:
    """Return the records as a table; None where there are none.

    Columns but the first in which no record has anything are left out. Of more than ``most``
    records those of the lowest ``rank`` are kept, in their order. Up to ``most_open`` rows stand
    open.
    """
    found = list(records)
    if not found:
        return None
    kept = range(len(found))
    if len(found) > most:
        by_rank = sorted(kept, key=lambda i: rank(found[i])) if rank else list(kept)
        kept_first = sorted(by_rank[:most])
    else:
        kept_first = list(kept)
    cells = [[_cell(column, found[i]) for column in columns] for i in kept_first]
    told = [j for j in range(len(columns)) if j == 0 or any(row[j] != NONE for row in cells)]
    return Table(
        name=name,
        title=title,
        headings=tuple(text(columns[j].heading) for j in told),
        looks=tuple(_look(columns[j], [row[j] for row in cells]) for j in told),
        rows=tuple(tuple(row[j] for j in told) for row in cells),
        note=note,
        left_out=len(found) - len(kept_first),
        command=command,
        is_open=len(kept_first) <= most_open,
    )


def _cell(column: Column, record: Any) -> str:
    told = text(column.cell(record))
    return unbroken(told) if column.numeric else told


def _look(column: Column, cells: list[str]) -> str:
    longest = max(map(len, cells))
    if column.numeric:
        return "n"
    if longest <= _SHORT:
        return "short"
    return "longest" if longest > _LONGEST else "long" if longest > _LONG else ""


def words(heading: str, key: str) -> Column:
    """Return a column of text."""
    return Column(heading, lambda row: text(row[key]), numeric=False)


def those(tables: Iterable[Table | None]) -> tuple[Table, ...]:
    """Return the tables that there are."""
    return tuple(table for table in tables if table is not None)
