"""Progress of long work. Code says how far it is, and the command line shows it."""

from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import TypeVar

Item = TypeVar("Item")
#: Is called with what is done, the number of done items, and that of all or None.
Observer = Callable[[str, int, int | None], object]
observer: ContextVar[Observer | None] = ContextVar("observer", default=None)


def track(items: Iterable[Item], what: str, total: int | None = None) -> Iterator[Item]:
    """Yield the items; the observer is called before each of them and after the last."""
    observe = observer.get() or (lambda *_: None)
    done = 0
    for item in items:
        observe(what, done, total)
        yield item
        done += 1
    observe(what, done, done)
