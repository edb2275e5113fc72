"""Requests to end a campaign: signals, and ``wattlaw cancel``."""

import contextlib
import signal
import time
from collections.abc import Iterator
from types import FrameType

from wattlaw.store.store import Store

CANCELLED = "wattlaw cancel"
_STOP_POLL_S = 0.5


class Stop:
    """Whether the campaign has to end; ``by`` names the signal or the command."""

    def __init__(self, store: Store) -> None:
        self.by: str | None = None
        self._store, self._cancelled_before = store, store.cancelled_at()
        self._polled_s = time.monotonic()

    def poll(self) -> None:
        """Check, at most every 0.5 s, whether the store was cancelled since the campaign began."""
        if self.by is None and time.monotonic() - self._polled_s > _STOP_POLL_S:
            self._polled_s = time.monotonic()
            if self._store.was_cancelled_since(self._cancelled_before):
                self.by = CANCELLED


@contextlib.contextmanager
def stopping(store: Store) -> Iterator[Stop]:
    """Record the signals that terminate a program in a ``Stop``, instead of terminating.

    A SIGHUP that is ignored, as under nohup, stays ignored.
    """
    stop = Stop(store)

    def record(number: int, _: FrameType | None) -> None:
        stop.by = signal.Signals(number).name

    signals = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signals.append(signal.SIGHUP)
    before = {number: signal.signal(number, record) for number in signals}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
