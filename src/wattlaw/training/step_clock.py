"""The time of every step of a window and of its parts, measured without waiting for the device."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from wattlaw.instrumentation.step_times import Floats

#: A moment of ``StepClock``: a device event, or a time of the host's clock.
Moment = Any


class StepClock:
    """The time of every step, measured without synchronising the device inside a window.

    It marks the end of each step by a device event on CUDA, elsewhere by the host's clock.
    """

    def __init__(self, *, on_cuda: bool) -> None:
        self._on_cuda = on_cuda
        self._marks: list[Moment] = []
        self.mark()

    def now(self) -> Moment:
        """Return the present moment: on CUDA, when the device has done what is queued so far."""
        if not self._on_cuda:
            return time.perf_counter()
        import torch

        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def mark(self) -> None:
        """Mark the end of a step, and with it the start of the next."""
        self._marks.append(self.now())

    def steps_s(self) -> Floats:
        """Return the time of each step; the device must be synchronised before the call."""
        return self.between_s(list(zip(self._marks, self._marks[1:], strict=False)))

    def between_s(self, pairs: Sequence[tuple[Moment, Moment]]) -> Floats:
        """Return the time between two moments; the device must be synchronised before the call."""
        if not self._on_cuda:
            return np.array([second - first for first, second in pairs], dtype=float)
        return np.array([first.elapsed_time(second) for first, second in pairs], float) * 1e-3
