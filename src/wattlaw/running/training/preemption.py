"""Preemption notices: signals after which all ranks stop at the same step.

A notice is SIGUSR1 and, if the launcher expects notices, SIGTERM: a scheduler that preempts a job
sends it to all processes of the job.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from wattlaw.running.training.environment import WARNS

if TYPE_CHECKING:
    from wattlaw.running.training.ranks import Ranks

#: The time between two agreements of the ranks, and the largest number of steps between them.
_EVERY_S, _MOST_STEPS = 1.0, 1000

_is_received = False


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """Handle notices in the block; one that came while the signal was blocked counts too.

    Later ones are ignored: Python removes its handlers at exit, and a notice would end the process.
    """
    numbers = (signal.SIGUSR1, *((signal.SIGTERM,) if WARNS in os.environ else ()))
    for number in numbers:
        signal.signal(number, _receive)
        signal.siginterrupt(number, False)  # system calls of other threads are not interrupted
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)


def _receive(*_: object) -> None:
    global _is_received  # noqa: PLW0603 - signals belong to the process
    _is_received = True


class PreemptionNotice:
    """Whether a notice has come to any rank; all ranks get the same answer after the same step.

    The ranks agree by a reduction on the CPU, which also gives the longest time per step, from
    which every rank computes after how many steps the next agreement is due.
    """

    def __init__(self, ranks: "Ranks", *, expected: bool) -> None:
        self._expected, self._ranks, self._agrees = expected, ranks, expected and ranks.world > 1
        self._group = ranks.cpu_group() if self._agrees else None
        self.begin()

    def begin(self) -> None:
        """Begin an epoch: ranks agree after its first step."""
        self._between = self._left = 1
        self._since_s = time.perf_counter()

    def after_step(self) -> bool:
        if not self._agrees:
            return self._expected and _is_received
        self._left -= 1
        if self._left:
            return False
        now_s = time.perf_counter()
        must_stop, step_s = self._agree((now_s - self._since_s) / self._between)
        # At most twice as many as before: a GPU may be far behind in an epoch's first steps.
        self._between = min(steps_between(step_s), 2 * self._between)
        self._left, self._since_s = self._between, now_s
        return must_stop

    def now(self) -> bool:
        return self._agree(0.0)[0] if self._agrees else self._expected and _is_received

    def _agree(self, step_s: float) -> tuple[bool, float]:
        is_received, step_s = self._ranks.largest([float(_is_received), step_s], self._group)
        return bool(is_received), step_s


def steps_between(step_s: float) -> int:
    if step_s * _MOST_STEPS <= _EVERY_S:
        return _MOST_STEPS
    return max(1, round(_EVERY_S / step_s))
