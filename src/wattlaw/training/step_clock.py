"""The time of every step of a window, measured without waiting for the device."""

import time
from typing import Any

import numpy as np

from wattlaw.instrumentation.step_times import Floats


class StepClock:
    """The time of every step, measured without synchronising the device inside a window.

    It marks the end of each step by a device event on CUDA, elsewhere by the host's clock.
    """

    def __init__(self, *, on_cuda: bool) -> None:
        self._on_cuda = on_cuda
        self._marks: list[Any] = []
        self.mark()

    def mark(self) -> None:
        """Mark the end of a step, and with it the start of the next."""
        if self._on_cuda:
            import torch

            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())

    def steps_s(self) -> Floats:
        """Return the time of each step; the device must be synchronised before the call."""
        if not self._on_cuda:
            return np.diff(self._marks)
        pairs = zip(self._marks, self._marks[1:], strict=False)
        return np.array([first.elapsed_time(second) for first, second in pairs]) * 1e-3
