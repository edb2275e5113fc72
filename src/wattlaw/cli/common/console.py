"""Tables, progress and colours: a rich console that shows text from data as plain text."""

import sys
from collections.abc import Container, Hashable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from rich import box, console
from rich.cells import cell_len
from rich.console import JustifyMethod, OverflowMethod
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from wattlaw.common.formatting import MISSING
from wattlaw.common.terminal import OutputStream, escape_invisible

if TYPE_CHECKING:
    from wattlaw.report import tables


class Console(console.Console):
    """Markup and emoji codes in a text are not interpreted, and what could control the terminal is
    escaped: only rich itself adds colours and cursor movements."""

    def __init__(self, *, stderr: bool = False, width: int | None = None) -> None:
        stream = sys.stderr if stderr else sys.stdout
        file = stream.unescaped if isinstance(stream, OutputStream) else stream
        super().__init__(file=file, width=width, markup=False, emoji=False, highlight=False)  # type: ignore[arg-type]

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(escape_invisible(text), **options)

    def render(
        self, renderable: Any, options: console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the parts of a renderable, with text that did not come as ``str`` escaped too."""
        for part in super().render(renderable, options):
            yield part if part.control else Segment(escape_invisible(part.text), part.style)

    def show(self, table: "tables.Table | None") -> None:
        if table is None:
            return
        kinds = zip(table.headings, table.classes, strict=True)
        numbers = {name for name, kind in kinds if kind == "n"}
        names = table.headings[:1] if table.classes[0] == "short" else ()
        texts = {"title": table.title or None, "caption": table.note or None}
        rows = table.plain_rows
        self.print(make_table(table.headings, rows, right=numbers, no_wrap=names, **texts))


#: A column of text may be this narrow unless a word is longer (no longer than a run id counts), and
#: lines of the list of a wide table are indented.
_TEXT_WIDTH, _WORD_WIDTH, _INDENT = 12, 24, 2


class FittingTable(Table):
    """A table that becomes a list where it is wider than the terminal: a block of lines per row.
    Numbers are never broken; texts are, between words."""

    def __rich_console__(
        self, console: console.Console, options: console.ConsoleOptions
    ) -> Iterator[Any]:
        if self._least_width() <= options.max_width:
            yield from super().__rich_console__(console, options)
            return
        if self.title:
            yield Text.assemble((str(self.title), "italic"), "\n")
        first, *others = self.columns
        above = None
        for cells in zip(*(column.cells for column in self.columns), strict=True):
            heading = f"{first.header} " if first.justify == "right" else ""
            heading += _plain(cells[0]).replace("\n", ", ")
            if heading != above:
                yield Text(heading, style="bold")
            above = heading
            pairs = zip(others, map(_plain, cells[1:]), strict=True)
            block = Table.grid(padding=(0, 2, 0, 0))
            block.add_column(no_wrap=True)
            block.add_column(overflow="fold")
            for column, text in pairs:
                if text not in ("", MISSING):
                    block.add_row(str(column.header), text)
            yield Padding(block, (0, 0, 1, _INDENT))
        if self.caption:
            yield Text(str(self.caption), style="dim italic")

    def _least_width(self) -> int:
        """Return the width at which all numbers are on one line, and words are not broken."""
        width = 3  # the edges
        for column in self.columns:
            lines = [line for cell in column.cells for line in _plain(cell).splitlines()]
            longest = max(map(cell_len, lines), default=0)
            if column.justify != "right":
                word = max((cell_len(word) for line in lines for word in line.split()), default=0)
                longest = min(longest, max(_TEXT_WIDTH, min(word, _WORD_WIDTH)))
            heading = max(map(cell_len, str(column.header).split()), default=0)
            width += 2 + max(longest, heading if self.show_header else 0)
        return width


def _plain(cell: Any) -> str:
    return cell.plain if isinstance(cell, Text) else str(cell)


def make_table(
    columns: Iterable[Hashable],
    rows: Iterable[Iterable[str | Text]],
    *,
    right: Container[Hashable] = (),
    no_wrap: Container[Hashable] = (),
    **options: Any,
) -> Table:
    """``right`` and ``no_wrap``: columns aligned to the right, and cut instead of folded."""
    table = FittingTable(title_justify="left", box=box.SIMPLE_HEAD, **options)
    table.collapse_padding = True
    for name in columns:
        overflow: OverflowMethod = "ellipsis" if name in no_wrap else "fold"
        justify: JustifyMethod = "right" if name in right else "left"
        table.add_column(str(name), justify=justify, no_wrap=name in no_wrap, overflow=overflow)
    for row in rows:
        table.add_row(*row)
    return table
