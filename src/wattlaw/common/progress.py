"""Progress of long work. Code says how far it is, and the command line shows it."""

import sys
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
    """Yield the items; the observer is called before each of them and after the last."""
    observe, done = observer.get(), 0
    try:
        for item in items:
            if observe is not None:
                observe(what, done, total)
            yield item
            done += 1
    finally:  # also where the caller needs no more items
        if observe is not None:
            observe(what, done, done)


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
        if handle is None:
            handle = display(output, raw=True, display_id=True)
        else:
            handle.update(output, raw=True)

    return show
