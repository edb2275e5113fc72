"""Progress of long work. Code says how far it is; the command line and notebooks show it."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from typing import Any, TypeVar

Item = TypeVar("Item")
#: Is called with what is done, the number of done items, and that of all or None.
Observer = Callable[[str, int, int | None], object]
observer: ContextVar[Observer | None] = ContextVar("observer", default=None)
#: Work is shown when it takes longer.
SHOWN_AFTER_S = 2.0


@contextmanager
def silent() -> Iterator[None]:
    """Show no progress of the work within, such as where a campaign shows its own."""
    token = observer.set(lambda *_: None)
    try:
        yield
    finally:
        observer.reset(token)


def track(items: Iterable[Item], what: str, total: int | None = None) -> Iterator[Item]:
    """Yield the items; the observer is called before each of them and after the last.

    Without an observer, a notebook shows a line below its cell.
    """
    line = None if observer.get() is not None else notebook_line()
    observe = observer.get() or (line and _LineObserver(line)) or (lambda *_: None)
    done = 0
    try:
        for item in items:
            observe(what, done, total)
            yield item
            done += 1
    finally:  # also where the caller needs no more items
        observe(what, done, done)
        if line is not None:
            line.clear()


class NotebookLine:
    """A line of output of a notebook cell, which is replaced by the next one."""

    def __init__(self, display: Callable[..., Any]) -> None:
        self._display = display
        self._handle: Any = None

    def __call__(self, text: str) -> None:
        """Show a text instead of the one before."""
        output = {"text/plain": text}
        if self._handle is None:
            self._handle = self._display(output, raw=True, display_id=True)
        else:
            self._handle.update(output, raw=True)

    def clear(self) -> None:
        if self._handle is not None:
            self("")


def notebook_line() -> NotebookLine | None:
    """Return a line of the notebook that this program is a cell of; None elsewhere."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if not hasattr(shell, "kernel"):  # a terminal, or no IPython
        return None
    return NotebookLine(import_module("IPython.display").display)


class _LineObserver:
    def __init__(self, line: NotebookLine) -> None:
        self._line, self._shown_s = line, time.monotonic() + SHOWN_AFTER_S

    def __call__(self, what: str, done: int, total: int | None) -> None:
        if time.monotonic() >= self._shown_s:  # and then twice a second
            self._shown_s = time.monotonic() + 0.5
            self._line(f"{what}: {done:,}" + ("" if total is None else f" of {total:,}"))
