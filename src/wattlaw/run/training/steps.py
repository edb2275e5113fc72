"""When a run that is measured by optimizer steps ends."""

import math
from collections.abc import Callable, Iterator, Sequence

from wattlaw.measure.telemetry.device_energy import shortest_window_s
from wattlaw.study.model import Measure

#: The steps or seconds of a run are at most this many times those that the study requests.
MOST_FACTOR = 10


class StepGoal:
    """How many steps a run measures: as many as requested, and more if they end too early.

    Every window has at least the length that a reliable energy needs (``shortest_window_s``),
    unless this takes more than ``MOST_FACTOR`` times the requested steps or seconds. ``largest``
    returns the largest of each value over all ranks, which all call it after the same step.
    """

    def __init__(
        self, measure: Measure, largest: Callable[[Sequence[float]], Sequence[float]]
    ) -> None:
        self._measure, self._largest = measure, largest
        self._needed_s = self._shortest_s = shortest_window_s(measure.sample_hz)
        self._seconds = measure.seconds or 0.0
        self._next, self._most = 1, math.inf
        if measure.steps is not None:
            self._next, self._most = measure.steps, MOST_FACTOR * measure.steps
        else:
            self._shortest_s = min(self._needed_s, MOST_FACTOR * self._seconds)

    def is_reached(self, steps: int, total_s: float, window_s: float) -> bool:
        """Return whether to end after a number of steps, with the time of all and of this window.

        Ranks agree when the goal may be reached, and the next time after at most twice the steps:
        a GPU may be far behind its host.
        """
        if steps < self._next:
            return False
        missing_s = max(self._seconds - total_s, self._shortest_s - window_s)
        missing_s, step_s = self._largest([missing_s, total_s / steps])
        if missing_s <= 0 or steps >= self._most:
            return True
        more = max(1, min(steps, math.ceil(missing_s / step_s)))
        self._next = int(min(steps + more, self._most))
        return False

    def may_split(self, steps: int, total_s: float, window_s: float) -> bool:
        """Return whether a window may end at the boundary of an epoch of the data; ranks agree.

        It may if it is long enough, and so is the rest of what the study requests.
        """
        rest_s = self._seconds - total_s
        if self._measure.steps is not None:
            rest_s = (self._measure.steps - steps) * total_s / steps
        return self._largest([self._shortest_s - min(window_s, rest_s)])[0] <= 0

    def notes(self, steps: int, total_s: float) -> Iterator[str]:
        """Yield what differs from the study's request, after a number of steps."""
        requested, needed = self._measure.steps, f"{self._needed_s:g} s"
        if requested is not None and total_s < self._needed_s:
            enough = math.ceil(self._needed_s / total_s * steps / requested) * requested
            yield (
                f"too few steps: {steps:,} took {total_s:.3g} s, and a reliable energy needs "
                f"{needed}; set measure.steps to {enough:,} or more"
            )
        elif requested is not None and steps > requested:
            yield (
                f"{steps:,} steps were measured instead of measure.steps {requested:,}, so that "
                f"windows last at least {needed}, which a reliable energy needs"
            )
        elif requested is None and self._seconds < self._needed_s:
            yield (
                f"{total_s:.3g} s were measured: measure.seconds {self._seconds:g} is less than "
                f"the {needed} that a reliable energy needs"
            )
