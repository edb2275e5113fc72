"""The optimizer steps of a tracked program: their times, samples and losses."""

import math
import sys
import time
import warnings
from typing import Any

from wattlaw.run.instrumentation.step_times import Floats, steadiness_notes, step_time_columns
from wattlaw.run.training.step_clock import StepClock
from wattlaw.run.training.steps import StepGoal
from wattlaw.study.model import Measure


class Steps:
    """The steps since the start of a window. Nothing here waits for the GPU before its end."""

    def __init__(self) -> None:
        gpu = _gpu_in_use()
        devices = [] if gpu is None else _devices_in_use(gpu)
        self._clock = StepClock(gpu, devices[0] if devices else None)
        self._samples: int | None = 0
        self._loss: Any = 0.0
        self._weight = 0
        self.count = 0

    def mark(self) -> None:
        """Mark the end of a step whose start is known."""
        self._clock.mark()

    def add(self, samples: int | None, loss: Any) -> None:
        """Count a step with its samples and its loss."""
        self.count += 1
        known = self._samples is not None and samples is not None
        self._samples = (self._samples or 0) + (samples or 0) if known else None
        if loss is not None:
            weight = 1 if samples is None else samples
            self._loss = self._loss + loss * weight
            self._weight += weight

    def duration_s(self) -> float:
        """Return the time from the start to the end of the last step, after the GPU's work."""
        return math.fsum(self.times_s())

    def times_s(self) -> Floats:
        """Return the time of each step, after the GPU's work."""
        return self._clock.steps_s()

    def values(self) -> dict[str, Any]:
        """Return the columns of the window, after the GPU's work."""
        loss = float(self._loss / self._weight) if self._weight else None
        values = {"steps": self.count, "samples": self._samples, "loss": loss}
        return values | step_time_columns(self.times_s())


class StepPlan:
    """Which steps of a program are warm-up, and when enough of them were measured."""

    def __init__(self, measure: Measure) -> None:
        self._measure = measure
        self._goal = StepGoal(measure, lambda values: values)
        self._measured, self._measured_s = 0, 0.0  # of windows that have ended
        self._notes: list[str] = []
        self.steps = 0
        self.is_complete = False

    @property
    def is_warmup(self) -> bool:
        """Say whether the next step is part of the warm-up."""
        return self.steps < self._measure.warmup_steps

    def ends_window(self, steps: int, start_s: float) -> bool:
        """Count a step; say whether the open window, with so many steps, ends with it."""
        was_warmup = self.is_warmup
        self.steps += 1
        if was_warmup:
            return not self.is_warmup
        self.is_complete = self._goal.is_reached(*self._progress(steps, start_s))
        return self.is_complete

    def may_split(self, steps: int, start_s: float) -> bool:
        """Say whether the open window is long enough to end where an epoch does."""
        return not self.is_warmup and self._goal.may_split(*self._progress(steps, start_s))

    def _progress(self, steps: int, start_s: float) -> tuple[int, float, float]:
        window_s = time.perf_counter() - start_s
        return self._measured + steps, self._measured_s + window_s, window_s

    def add(self, steps: Steps) -> None:
        """Add the steps of a measured window that has ended."""
        self._measured += steps.count
        self._measured_s += steps.duration_s()
        self._notes += steadiness_notes(steps.times_s())

    def problem(self) -> str | None:
        """Return what is missing of the requested steps or seconds."""
        seconds, steps = self._measure.seconds, self._measure.steps or 0
        has_requested = self._measured >= steps > 0
        if seconds is not None:
            has_requested = self._measured_s >= seconds
        if self.is_complete or has_requested:
            return None
        if not self.steps:
            return "no step was marked; call step() after each optimizer step"
        wanted = f"{self._measure.steps} steps" if seconds is None else f"{seconds:g} s"
        warmup = min(self.steps, self._measure.warmup_steps)
        return f"ended after {warmup} warm-up and {self._measured} measured steps, before {wanted}"

    def notes(self) -> tuple[str, ...]:
        """Return what is wrong with the measured steps, and what differs from the request."""
        problem = self.problem()
        goal = [problem] if problem else self._goal.notes(self._measured, self._measured_s)
        return tuple(dict.fromkeys([*self._notes, *goal]))


def number(name: str, value: Any, kind: type[int] | type[float]) -> float:
    """Return a value as a plain number; ``name`` is its place in the error message."""
    try:
        return kind(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise ValueError(f"{name}: {value!r:.80}; allowed: a number") from None


def lazy_loss(value: Any) -> Any:
    """Return the loss of a step as a number, or as a tensor that stays on its device."""
    if not hasattr(value, "detach"):
        return None if value is None else number("step: loss", value, float)
    if value.numel() != 1:
        raise ValueError(f"step: loss: {value.numel()} elements; allowed: a number")
    return value.detach().float().reshape(())


def now() -> tuple[int, float]:
    """Return the time on both clocks, after the GPU has finished its work."""
    try:
        gpu = _gpu_in_use()
        if gpu is not None:
            devices = _devices_in_use(gpu)
            for device in devices:
                gpu.synchronize(device)
            if not devices:
                gpu.synchronize()
    except Exception as error:  # such as during the capture of a CUDA graph
        warnings.warn(f"wattlaw: could not wait for the GPU: {error}", stacklevel=2)
    return time.time_ns(), time.perf_counter()


def _gpu_in_use() -> Any | None:
    """Return torch's functions for the GPUs that this process has used, None if it has none."""
    torch = sys.modules.get("torch")
    for gpu in (getattr(torch, name, None) for name in ("cuda", "xpu")):
        # The first question asks no driver, which a program on the CPU must not start.
        if gpu is not None and gpu.is_initialized() and gpu.is_available():
            return gpu
    return None


def _devices_in_use(gpu: Any) -> list[int]:
    """Return the GPUs on which this process has memory, that with the most first.

    The parameters are there, whatever the current device is. Empty where torch cannot say.
    """
    try:
        held_bytes = {n: gpu.memory_reserved(n) for n in range(gpu.device_count())}
    except Exception:  # such as an allocator of the program's own
        return []
    used = [number for number, size in held_bytes.items() if size]
    return sorted(used, key=lambda number: -held_bytes[number])
