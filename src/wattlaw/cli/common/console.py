"""Tables, progress and colours: a rich console that shows text from data as plain text."""

import sys
from collections.abc import Container, Hashable, Iterable
from typing import TYPE_CHECKING, Any

from rich import box, console
from rich.console import JustifyMethod, OverflowMethod
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from wattlaw.common.terminal import OutputStream, escape_invisible

if TYPE_CHECKING:
    from wattlaw.report import tables


class Console(console.Console):
    """A console on standard output or standard error.

    Neither markup nor emoji codes in a text are interpreted, and what could control the terminal is
    escaped. Only rich itself adds colours and cursor movements.
    """

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


def make_table(
    columns: Iterable[Hashable],
    rows: Iterable[Iterable[str | Text]],
    *,
    right: Container[Hashable] = (),
    no_wrap: Container[Hashable] = (),
    **options: Any,
) -> Table:
    """``right`` and ``no_wrap``: columns aligned to the right, and cut instead of folded."""
    table = Table(title_justify="left", box=box.SIMPLE_HEAD, **options)
    for name in columns:
        overflow: OverflowMethod = "ellipsis" if name in no_wrap else "fold"
        justify: JustifyMethod = "right" if name in right else "left"
        table.add_column(str(name), justify=justify, no_wrap=name in no_wrap, overflow=overflow)
    for row in rows:
        table.add_row(*row)
    return table
