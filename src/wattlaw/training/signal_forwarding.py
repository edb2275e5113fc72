"""Passes the warning signal of a node agent (SIGUSR1) on to this host's workers."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

import psutil

WORKER = "wattlaw.training.worker"
_POLL_S = 0.2


@contextlib.contextmanager
def forward_signals() -> Iterator[None]:
    """Give every worker the SIGUSR1 that this process gets; call it on the main thread.

    Also those that begin after it came. Whatever is started meanwhile inherits SIGUSR1 blocked, so
    that a signal to a whole process tree kills neither the sampler nor a worker that still imports
    its libraries: it gets it once it listens (``training.preemption``). No other
    process is sent anything.
    """
    relay = _SignalForwarder()
    handler = signal.signal(signal.SIGUSR1, relay.note)
    relay.start()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        yield
    finally:
        relay.end()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGUSR1, handler)


class _SignalForwarder(threading.Thread):
    """Sends in a thread of its own: torchrun has the main one."""

    def __init__(self) -> None:
        super().__init__(name="wattlaw-relay", daemon=True)
        self._has_come = False
        self._over = threading.Event()
        self._warned: set[psutil.Process] = set()

    def note(self, *_: object) -> None:
        """Take note of the signal, as its handler."""
        self._has_come = True

    def run(self) -> None:
        """Look for workers until the end; the one thread that the signal is not blocked in."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
        while not self._over.wait(_POLL_S):
            if self._has_come:
                self._warn()

    def end(self) -> None:
        """End the thread."""
        self._over.set()
        self.join()

    def _warn(self) -> None:
        for child in psutil.Process(os.getpid()).children():
            with contextlib.suppress(psutil.Error):
                if child not in self._warned and WORKER in child.cmdline():
                    child.send_signal(signal.SIGUSR1)
                    self._warned.add(child)
