"""A warning that a run is to end soon: all ranks stop after the same step.

It is SIGUSR1 and, where somebody may warn, SIGTERM as well: a scheduler that takes a job's time
away sends that to all its processes.
"""

import os
import signal
import time
from typing import TYPE_CHECKING

from wattlaw.training.environment import WARNS

if TYPE_CHECKING:
    from wattlaw.training.ranks import Ranks

#: How often ranks ask each other, and the most steps between.
_EVERY_S, _MOST_UPDATES = 1.0, 1000

_has_come = False


def listen() -> None:
    """Take note of warnings from now on; one that came while it was blocked counts too."""
    for number in (signal.SIGUSR1, *((signal.SIGTERM,) if WARNS in os.environ else ())):
        signal.signal(number, _note)
        signal.siginterrupt(number, False)  # what other threads wait for is not cut short
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})


def _note(*_: object) -> None:
    global _has_come  # noqa: PLW0603 - a process gets its signals as a whole
    _has_come = True


class PreemptionNotice:
    """Whether all ranks are to stop, as they agree among each other.

    An agreement is a reduction on the CPU, beside whatever GPUs exchange, of whether a rank was
    warned and how long the slowest one's steps take. From that every rank computes after how
    many steps the next one is due.

    Parameters
    ----------
    ranks
        Those that agree; every one of them makes this and asks it at the same points.
    expected
        Whether warnings may come at all; without, nothing is asked and nothing costs.
    """

    def __init__(self, ranks: "Ranks", *, expected: bool) -> None:
        self._expected, self._is_alone = expected, ranks.world == 1
        self._group = None
        if expected and not self._is_alone and ranks.device.type != "cpu":
            import torch.distributed as dist

            self._group = dist.new_group(backend="gloo")
        self.begin()

    def begin(self) -> None:
        """Begin an epoch's steps: ranks agree after the first of them."""
        self._between = self._left = 1
        self._since_s = time.perf_counter()

    def after_step(self) -> bool:
        """Return whether to stop after the step that was just made."""
        if not self._expected:
            return False
        if self._is_alone:
            return _has_come
        self._left -= 1
        if self._left:
            return False
        now_s = time.perf_counter()
        has_come, step_s = self._agreed((now_s - self._since_s) / self._between)
        # At most twice as many as before: a GPU may be far behind an epoch's first steps.
        self._between = min(steps_between(step_s), 2 * self._between)
        self._left, self._since_s = self._between, now_s
        return has_come

    def now(self) -> bool:
        """Return whether to stop, between two parts of a run."""
        if not self._expected:
            return False
        return _has_come if self._is_alone else self._agreed(0.0)[0]

    def _agreed(self, step_s: float) -> tuple[bool, float]:
        """Return whether any rank was warned, and the longest time per step."""
        import torch
        import torch.distributed as dist

        told = torch.tensor([float(_has_come), step_s], dtype=torch.float64)
        dist.all_reduce(told, dist.ReduceOp.MAX, group=self._group)
        return bool(told[0]), float(told[1])


def steps_between(step_s: float) -> int:
    """Return after how many steps of so many seconds ranks agree again: about one second's."""
    if step_s * _MOST_UPDATES <= _EVERY_S:
        return _MOST_UPDATES
    return max(1, round(_EVERY_S / step_s))
