"""A table of a report: text in columns, with a limit on the rows."""

import html
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from wattlaw.common import formatting as fmt
from wattlaw.study.labels import LIMIT_NAMES, limit_label

if TYPE_CHECKING:
    import pandas as pd

#: Most rows of a table; one that is longer than the second is folded until the reader opens it.
MAX_ROWS, MAX_OPEN_ROWS = 60, 12
#: CSS classes of columns of text, by the length of the longest text: the lines of a short one are
#: not broken, and a long one has a minimum width.
_CLASSES = ((16, "short"), (100, ""), (300, "long"))
_ENDS = ("_low", "_high")

#: A key of the records, or a function of a record.
Cell = str | Callable[[Any], Any]


@dataclass(frozen=True)
class Column:
    heading: str
    cell: Cell
    numeric: bool = True

    def value(self, record: Any) -> Any:
        return record[self.cell] if isinstance(self.cell, str) else self.cell(record)


@dataclass(frozen=True)
class Table:
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

    @property
    def plain_rows(self) -> list[list[str]]:
        """The rows with ordinary spaces."""
        return [[cell.replace("\u00a0", " ") for cell in row] for row in self.rows]

    def to_frame(self) -> "pd.DataFrame":
        import pandas as pd

        return pd.DataFrame(self.plain_rows, columns=list(self.headings))


def build(
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
    """Return the records as a table, None without any. Columns without a value are left out, except
    the first. Of more than ``max_rows`` records, those with the lowest ``rank`` are shown, in
    order."""
    records = list(records)
    if not records:
        return None
    order = list(range(len(records)))
    if rank is not None:
        order.sort(key=lambda i: rank(records[i]))
    shown = [records[i] for i in sorted(order[:max_rows])]
    headings, classes = [], []
    cells: list[list[str]] = []
    for column in columns:
        texts = [fmt.printable(column.value(record)) for record in shown]
        if cells and all(text == fmt.MISSING for text in texts):
            continue
        headings.append(fmt.printable(column.heading))
        if column.numeric:
            classes.append("n")
            texts = [fmt.no_breaks(text) for text in texts]
        else:
            longest = max(map(len, texts))
            classes.append(next((name for most, name in _CLASSES if longest <= most), "longest"))
        cells.append(texts)
    return Table(
        name, title, tuple(headings), tuple(classes), tuple(zip(*cells, strict=True)), note,
        omitted=len(records) - len(shown), command=command, is_open=len(shown) <= max_open_rows,
    )  # fmt: skip


def as_html(frame: "pd.DataFrame", lines: Iterable[str] = ()) -> str:
    text = "".join(f"<p>{html.escape(line)}</p>" for line in lines)
    if frame.empty:
        return text
    return text + str(
        frame.to_html(
            index=False, na_rep="-", border=0, float_format=lambda number: f"{number:.4g}",
            max_rows=60,
        )
    )  # fmt: skip


def text(heading: str, cell: Cell) -> Column:
    return Column(heading, cell, numeric=False)


def number(heading: str, cell: Cell, digits: int = 3, size: float = 1.0) -> Column:
    value = itemgetter(cell) if isinstance(cell, str) else cell

    def shown(record: Any) -> str:
        amount = value(record)
        return fmt.number(amount / size, digits) if fmt.known(amount) else fmt.MISSING

    return Column(heading, shown)


def limit(name: str) -> Column:
    return text(LIMIT_NAMES[name], lambda row: limit_label(name, row[name]))


def in_unit(
    heading: str,
    records: Iterable[Any],
    estimate_of: Callable[[Any], fmt.Estimate | None],
    units: fmt.Units,
) -> Column:
    """Return a column of amounts with their intervals, in the unit of their median."""
    amounts = [amount for record in records if (amount := estimate_of(record)) is not None]
    size, unit = fmt.choose_unit([amount.mean for amount in amounts], units)
    return Column(
        f"{heading} ({unit})", lambda record: fmt.estimate_text(estimate_of(record), size=size)
    )


def interval(
    heading: str, key: str, digits: int = 3, ends: tuple[str, str] = _ENDS, size: float = 1.0
) -> Column:
    low, high = (key + end for end in ends)
    return Column(heading, lambda row: fmt.interval(row[low] / size, row[high] / size, digits))


def estimate(heading: str, key: str) -> Column:
    return Column(heading, lambda row: with_interval(row, key))


def with_interval(row: Any, key: str) -> str:
    """Return ``value (low to high)``, or the value alone where there is no interval."""
    bounds = fmt.interval(*(row[key + end] for end in _ENDS))
    return fmt.number(row[key]) + ("" if bounds == fmt.MISSING else f" ({bounds})")
