"""Standard output and standard error: text from data cannot control the terminal.

``escaped_output`` replaces both streams, so every ``print``, log line and warning is escaped in one
place. ``wattlaw.cli.common.console`` escapes text itself before it adds colours.
"""

import contextlib
import io
import os
import re
import sys
import unicodedata
from collections.abc import Iterator
from typing import TextIO

_NOT_ASCII = re.compile(r"[^\n\t -~]")
#: Invisible characters that Unicode's categories do not show: its Default_Ignorable_Code_Point
#: outside of Cf, and the blank Braille pattern.
_IGNORABLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0"
    "\U000e0000-\U000e0fff]"
)


def escape_invisible(text: str, replacement: str | None = None) -> str:
    r"""Return text without characters that control a terminal or cannot be seen.

    These are all control, format, surrogate, private-use and unassigned characters, line and
    paragraph separators, and other invisible ones; newline and tab stay. Each becomes
    ``replacement``, by default its escape as Python writes it.

    Examples
    --------
    >>> print(escape_invisible("a\x1b[31mb\u202e"))
    a\x1b[31mb\u202e
    """

    def escape(match: re.Match[str]) -> str:
        char = match[0]
        is_shown = char.isprintable() or unicodedata.category(char) == "Zs"
        if is_shown and not _IGNORABLE.match(char):
            return char
        return ascii(char)[1:-1] if replacement is None else replacement

    return _NOT_ASCII.sub(escape, text)


class OutputStream(io.TextIOBase):
    """A text stream that escapes its text; write errors have the name of the stream.

    It has no ``buffer``, so that nothing is written unescaped by accident. ``unescaped`` is the
    same stream for text that is already safe.
    """

    def __init__(self, stream: TextIO, name: str, *, escapes: bool = True) -> None:
        self._stream, self._name, self._escapes = stream, name, escapes

    @property
    def unescaped(self) -> "OutputStream":
        return OutputStream(self._stream, self._name, escapes=False)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return self._stream.errors

    def write(self, text: str) -> int:
        with self._named():
            self._stream.write(escape_invisible(text) if self._escapes else text)
        return len(text)

    def flush(self) -> None:
        with self._named():
            self._stream.flush()

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            error.filename = self._name
            raise


@contextlib.contextmanager
def escaped_output() -> Iterator[None]:
    """Escape what is written to ``sys.stdout`` and ``sys.stderr`` in this block.

    A character that the terminal's encoding lacks is printed as its escape. Text for a stream that
    was closed when the process started is discarded.
    """
    before = sys.stdout, sys.stderr
    if None in before:
        for descriptor in range(3):  # so that no file gets a closed descriptor
            try:
                os.fstat(descriptor)
            except OSError:
                os.open(os.devnull, os.O_RDWR)
    sys.stdout = _escaping(before[0], "standard output")
    sys.stderr = _escaping(before[1], "standard error")
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _escaping(stream: TextIO | None, name: str) -> OutputStream:
    if stream is None:
        stream = io.TextIOWrapper(io.FileIO(os.devnull, "w"), encoding="utf-8")
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")
    return OutputStream(stream, name)


def print_note(text: str) -> None:
    print(f"wattlaw: {text}", file=sys.stderr)


def flush_output() -> None:
    """Flush both streams and discard what cannot be written, so that the exit is silent; raise
    ``OSError``, which names standard output, if that cannot be written."""
    failed: OSError | None = None
    for stream in (sys.stderr, sys.stdout):
        try:
            stream.flush()
        except OSError as error:
            failed = error if stream is sys.stdout else failed
            with contextlib.suppress(OSError):  # the interpreter flushes again when it ends
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, stream.fileno())
                os.close(null)
                stream.flush()
    if failed is not None:
        raise failed
