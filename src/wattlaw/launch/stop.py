"""What asks a campaign to end: a signal, or ``wattlaw cancel`` of its store."""

import contextlib
import signal
import time
from collections.abc import Iterator
from types import FrameType

from wattlaw.store.store import Store

CANCELLED = "wattlaw cancel"
_LOOK_S = 0.5


class Stop:
    """Who asked for the end; the campaign's loop looks at it."""

    def __init__(self, store: Store) -> None:
        self.by: str | None = None
        self._store, self._asked_before = store, store.cancelled_at()
        self._looked_s = time.monotonic()

    def look(self) -> None:
        """See now and then whether somebody has cancelled the store's runs since we began."""
        if self.by is None and time.monotonic() - self._looked_s > _LOOK_S:
            self._looked_s = time.monotonic()
            if self._store.was_cancelled_since(self._asked_before):
                self.by = CANCELLED

    @property
    def is_cancelled(self) -> bool:
        """Say whether the runs themselves are not wanted any more."""
        return self.by == CANCELLED


@contextlib.contextmanager
def stopping(store: Store) -> Iterator[Stop]:
    """Turn the signals that ask a program to end into a note.

    A SIGHUP that is ignored, as under nohup, stays ignored.
    """
    stop = Stop(store)

    def note(number: int, _: FrameType | None) -> None:
        stop.by = signal.Signals(number).name

    asked = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        asked.append(signal.SIGHUP)
    before = {number: signal.signal(number, note) for number in asked}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
