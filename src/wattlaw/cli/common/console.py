"""Tables, progress and colours: a rich console that shows text from data as plain text."""

import sys
from collections.abc import Iterable
from typing import Any

from rich import console
from rich.segment import Segment
from rich.text import Text

from wattlaw.terminal import OutputStream, escape_invisible


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
        """Return text for a layout: escaped, so that its width is the shown one."""
        return super().render_str(escape_invisible(text), **options)

    def render(
        self, renderable: Any, options: console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the parts of a renderable, with text that did not come as ``str`` escaped too."""
        for part in super().render(renderable, options):
            yield part if part.control else Segment(escape_invisible(part.text), part.style)
