"""Progress of long work. Code says how far it is; the command line and notebooks show it."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from typing import TypeVar

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
    observe, show = observer.get(), None
    if observe is None and (show := notebook_line()) is not None:
        observe = _shown_by(show)
    done = 0
    try:
        for item in items:
            if observe is not None:
                observe(what, done, total)
            yield item
            done += 1
    finally:  # also where the caller needs no more items
        if observe is not None:
            observe(what, done, done)
        if show is not None:
            show("")


def notebook_line() -> Callable[[str], None] | None:
    """Return what shows a text below the notebook cell that this program is, instead of the text
    before; None elsewhere."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if not hasattr(shell, "kernel"):  # a terminal, or no IPython
        return None
    display, handle = import_module("IPython.display").display, None

    def show(text: str) -> None:
        nonlocal handle
        output = {"text/plain": text}
        if handle is not None:
            handle.update(output, raw=True)
        elif text:
            handle = display(output, raw=True, display_id=True)

    return show


def _shown_by(show: Callable[[str], None]) -> Observer:
    next_s = time.monotonic() + SHOWN_AFTER_S

    def observe(what: str, done: int, total: int | None) -> None:
        nonlocal next_s
        if time.monotonic() >= next_s:  # and then twice a second
            next_s = time.monotonic() + 0.5
            show(f"{what}: {done:,}" + ("" if total is None else f" of {total:,}"))

    return observe
