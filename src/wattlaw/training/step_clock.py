"""The time of every step, measured without synchronising the device inside a window."""

import time

import numpy as np
import torch


class StepClock:
    """Marks the end of each step: device events on CUDA, the host's clock elsewhere."""

    def __init__(self, device: torch.device) -> None:
        self._on_cuda = device.type == "cuda"
        self._events: list[torch.cuda.Event] = []
        self._times_s: list[float] = []
        self.mark()

    def mark(self) -> None:
        """Mark the end of a step, and with it the start of the next."""
        if self._on_cuda:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self._events.append(event)
        else:
            self._times_s.append(time.perf_counter())

    def summary(self) -> dict[str, float | None]:
        """Return mean, median, 95th percentile and coefficient of variation of the step times.

        The device must be synchronised before the call. Without a step all are None.
        """
        if self._on_cuda:
            pairs = zip(self._events, self._events[1:], strict=False)
            steps_s = np.array([first.elapsed_time(second) for first, second in pairs]) * 1e-3
        else:
            steps_s = np.diff(self._times_s)
        if not len(steps_s):
            return dict.fromkeys(
                ("step_time_mean_s", "step_time_p50_s", "step_time_p95_s", "step_time_cv")
            )
        mean = float(steps_s.mean())
        return {
            "step_time_mean_s": mean,
            "step_time_p50_s": float(np.median(steps_s)),
            "step_time_p95_s": float(np.percentile(steps_s, 95)),
            "step_time_cv": float(steps_s.std(ddof=1) / mean) if len(steps_s) > 1 else None,
        }
