"""The time of every step of a window and of its parts, measured without waiting for the device."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from wattlaw.run.instrumentation.step_times import Floats

#: A moment of ``StepClock``: a device event, or a time of the host's clock.
Moment = Any


class StepClock:
    """The time of every step, measured without synchronising the device inside a window.

    It marks the end of each step by an event of the GPU, or else by the host's clock.

    Parameters
    ----------
    gpu
        Torch's functions for the GPU, such as ``torch.cuda``; None if there is none.
    device
        The device whose current stream is timed; by default the current device.
    """

    def __init__(self, gpu: Any | None, device: Any = None) -> None:
        self._gpu, self._device = gpu, device
        self._marks: list[Moment] = []
        self.mark()

    def now(self) -> Moment:
        """Return the present moment: on a GPU, when it has done what is queued so far."""
        if self._gpu is None:
            return time.perf_counter()
        event = self._gpu.Event(enable_timing=True)
        if self._device is None:
            event.record()
        else:
            event.record(self._gpu.current_stream(self._device))
        return event

    def mark(self) -> None:
        """Mark the end of a step, and with it the start of the next."""
        self._marks.append(self.now())

    def steps_s(self) -> Floats:
        """Return the time of each step; the device must be synchronised before the call."""
        return self.between_s(list(zip(self._marks, self._marks[1:], strict=False)))

    def between_s(self, pairs: Sequence[tuple[Moment, Moment]]) -> Floats:
        """Return the time between two moments; the device must be synchronised before the call."""
        if self._gpu is None:
            return np.array([second - first for first, second in pairs], dtype=float)
        return np.array([first.elapsed_time(second) for first, second in pairs], float) * 1e-3
