"""The recorder of optimizer steps: from the ends of steps to windows with statistics and notes.

The training loop, ``track``, the callbacks and the hook of unmodified scripts share what a step, a
warm-up, a pause and a window are. The windows become rows of ``epochs.parquet``.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from wattlaw.measure.telemetry.device_energy import shortest_window_s
from wattlaw.study.model import Measure
from wattlaw.study.not_as_declared import TOO_SHORT

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
#: A moment of ``StepClock``: a device event, or a time of the host's clock.
Moment = Any

#: A drift is above this share and this many of its standard errors. Fewer steps do not show it.
_DRIFT, _ERRORS, _LEAST_STEPS = 0.05, 4.0, 30
#: Standard deviation over median absolute deviation, and standard error of a median of n values
#: over standard deviation / sqrt(n), both of normal values.
_SIGMA_PER_MAD, _MEDIAN_ERROR = 1.4826, 1.2533
#: Blocks of steps whose means show how well a window knows its mean.
_BLOCKS = 10
#: The steps or seconds of a run are at most this many times those that the study requests.
MOST_FACTOR = 10
#: A usual number of samples is that of at least this share of the steps, so that the last batches
#: of epochs, which may be smaller, do not count, even where an epoch has two steps. If fewer than
#: ``_MOST`` have it, it may be one of several sizes (buckets) whose mean is the batch.
_USUAL, _MOST, _LEAST_BATCHES = 0.45, 0.6, 3
_SAME = 0.02
#: If more steps are without a sample, several share a batch, or batches are fetched far ahead.
_MOST_EMPTY = 0.1


class StepClock:
    """The time of every step, measured without synchronising the device inside a window.

    It marks the end of each step by an event of the GPU, or else by the host's clock. ``gpu`` has
    torch's functions, such as ``torch.cuda``; it is None without a GPU. ``device`` is the one whose
    current stream is timed, by default the current one. The device must be synchronised before a
    time is read.
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
        self._marks.append(self.now())

    def steps_s(self) -> Floats:
        return self.between_s(list(zip(self._marks, self._marks[1:], strict=False)))

    def between_s(self, pairs: Sequence[tuple[Moment, Moment]]) -> Floats:
        if self._gpu is None:
            return np.array([second - first for first, second in pairs], dtype=float)
        return np.array([first.elapsed_time(second) for first, second in pairs], float) * 1e-3


@dataclass
class Step:
    """What a process knows of a step; tensors stay on their device until the window ends."""

    samples: int | None = 0
    loss_sum: Any = 0.0
    loss_samples: int = 0  # over which ``loss_sum`` is
    data_waits: list[tuple[Moment, Moment]] = field(default_factory=list)
    communication: list[tuple[Moment, Moment]] = field(default_factory=list)


class StepWindow:
    """The steps since its creation. Nothing waits for the device before the window has ended."""

    def __init__(self, gpu: Any | None) -> None:
        self.clock = StepClock(gpu)
        self.start_ns, self.start_s = time.time_ns(), time.perf_counter()
        self.stepped_s = 0.0  # host time to its last step: at most the sum of its step times
        self.steps = 0
        self.all = Step()  # the sums over the steps

    @property
    def elapsed_s(self) -> float:
        return time.perf_counter() - self.start_s

    def add(self, step: Step, *, is_timed: bool = True) -> None:
        """Add a step that ends now; one whose start is unknown has no time."""
        if is_timed:
            self.stepped_s = self.elapsed_s
            self.clock.mark()
        self.steps += 1
        known = self.all.samples is not None and step.samples is not None
        self.all.samples = (self.all.samples or 0) + (step.samples or 0) if known else None
        self.all.loss_sum = self.all.loss_sum + step.loss_sum
        self.all.loss_samples += step.loss_samples
        self.all.data_waits += step.data_waits
        self.all.communication += step.communication

    def columns(self) -> dict[str, Any]:
        """Return the columns of this process's window, after the device's work."""
        loss = float(self.all.loss_sum / self.all.loss_samples) if self.all.loss_samples else None
        values = {"steps": self.steps, "samples": self.all.samples, "loss": loss}
        return values | step_time_columns(self.clock.steps_s())


class StepPlan:
    """Which steps of a run are warm-up, where its windows end, and when enough are measured.

    As many steps are measured as requested, and more if they end too early: every window has at
    least the length that a reliable energy needs (``shortest_window_s``), unless this takes more
    than ``MOST_FACTOR`` times the requested steps or seconds. ``largest`` returns the largest of
    each value over all ranks, which all call it after the same step.
    """

    def __init__(
        self,
        measure: Measure,
        largest: Callable[[Sequence[float]], Sequence[float]] = lambda values: values,
    ) -> None:
        self._measure, self._largest = measure, largest
        self._needed_s = self._shortest_s = shortest_window_s(measure.sample_hz)
        self._seconds = measure.seconds or 0.0
        self._next, self._most = 1, math.inf
        if measure.steps is not None:
            self._next, self._most = measure.steps, MOST_FACTOR * measure.steps
        else:
            self._shortest_s = min(self._needed_s, MOST_FACTOR * self._seconds)
        self._measured, self._measured_s = 0, 0.0  # of windows that have ended
        self._notes: list[str] = []
        self.steps = 0
        self.is_complete = False

    @property
    def is_warmup(self) -> bool:
        return self.steps < self._measure.warmup_steps

    def ends_window(self, steps: int, window_s: float) -> bool:
        """Count a step; say whether the open window, with so many steps, ends with it.

        Ranks agree when the goal may be reached, and the next time after at most twice the steps:
        a GPU may be far behind its host.
        """
        was_warmup = self.is_warmup
        self.steps += 1
        if was_warmup:
            return not self.is_warmup
        measured, measured_s = self._measured + steps, self._measured_s + window_s
        if measured < self._next:
            return False
        missing_s = max(self._seconds - measured_s, self._shortest_s - window_s)
        missing_s, step_s = self._largest([missing_s, measured_s / measured])
        self.is_complete = missing_s <= 0 or measured >= self._most
        if not self.is_complete:
            more = max(1, min(measured, math.ceil(missing_s / step_s)))
            self._next = int(min(measured + more, self._most))
        return self.is_complete

    def may_split(self, steps: int, window_s: float) -> bool:
        """Say whether the open window may end at the boundary of an epoch of the data.

        It may if it is long enough, and so is the rest of what is requested. Ranks agree.
        """
        if self.is_warmup:
            return False
        measured, measured_s = self._measured + steps, self._measured_s + window_s
        rest_s = self._seconds - measured_s
        if self._measure.steps is not None:
            rest_s = (self._measure.steps - measured) * measured_s / measured
        return self._largest([self._shortest_s - min(window_s, rest_s)])[0] <= 0

    def add(self, steps_s: Floats, duration_s: float) -> None:
        self._measured += len(steps_s)
        self._measured_s += duration_s
        if (note := drift_note(steps_s)) is not None:
            self._notes.append(note)

    def problem(self) -> str | None:
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
        text = f"ended after {warmup} warm-up and {self._measured} measured steps, before {wanted}"
        return f"{text}: the training has no more; {TOO_SHORT}"

    def notes(self) -> list[str]:
        notes, problem = self._notes, self.problem()
        if problem is None and self._measured_s < self._needed_s:
            problem = (
                f"too few steps: {self._measured:,} took {self._measured_s:.3g} s, and a reliable "
                f"energy needs {self._needed_s:g} s; "
            )
            is_over = not self.is_complete
            problem += TOO_SHORT if is_over else "set measure.steps or measure.seconds to more"
        return list(dict.fromkeys([*notes, problem] if problem else notes))


def step_time_columns(steps_s: Floats) -> dict[str, float | None]:
    """Return mean, median, 95th percentile and coefficient of variation; None without a step.

    The error is the relative standard error of the mean by the means of successive blocks, so that
    a drift and slow stretches count (batch means; Law & Kelton 1984, Operations Research 32, 1221).
    """
    if not len(steps_s):
        names = ("step_time_mean_s", "step_time_p50_s", "step_time_p95_s", "step_time_cv")
        return dict.fromkeys((*names, "step_time_error"))
    mean_s = float(steps_s.mean())
    has_variation = len(steps_s) > 1 and mean_s > 0
    parts = np.array_split(steps_s, min(_BLOCKS, len(steps_s)))
    means_s = np.array([part.mean() for part in parts])
    error_s = means_s.std(ddof=1) / math.sqrt(len(parts)) if has_variation else 0.0
    return {
        "step_time_mean_s": mean_s,
        "step_time_p50_s": float(np.median(steps_s)),
        "step_time_p95_s": float(np.percentile(steps_s, 95)),
        "step_time_cv": float(steps_s.std(ddof=1) / mean_s) if has_variation else None,
        "step_time_error": float(error_s / mean_s) if has_variation else None,
    }


def drift(steps_s: Floats) -> float | None:
    """Return the relative change of the median from the first to the last third, if it is clear."""
    if len(steps_s) < _LEAST_STEPS:
        return None
    third = len(steps_s) // 3
    medians_s, errors_s = [], []
    for part in (steps_s[:third], steps_s[-third:]):
        median_s = float(np.median(part))
        deviation_s = float(np.median(np.abs(part - median_s)))
        medians_s.append(median_s)
        errors_s.append(_MEDIAN_ERROR * _SIGMA_PER_MAD * deviation_s / math.sqrt(third))
    before_s, change_s = medians_s[0], medians_s[1] - medians_s[0]
    is_clear = abs(change_s) > max(_DRIFT * before_s, _ERRORS * math.hypot(*errors_s))
    return change_s / before_s if is_clear else None


def drift_note(steps_s: Floats) -> str | None:
    change = drift(steps_s)
    return None if change is None else f"the step time changes by {change:+.0%} within the window"


def batch_that_ran(steps_by_samples: Mapping[int, int], declared: int | None) -> int | None:
    """Return the global batch that ran, where it clearly is not the declared one; else None.

    ``steps_by_samples`` states how many optimizer steps had a number of samples, of all ranks and
    with gradient accumulation.

    >>> batch_that_ran({48: 30, 6: 10}, 128)
    48
    >>> batch_that_ran({128: 30, 22: 30}, 128) is None
    True
    """
    steps = sum(steps_by_samples.values())
    usual = {n: count for n, count in steps_by_samples.items() if count >= _USUAL * steps}
    if declared is None or steps < _LEAST_BATCHES or declared in usual or not usual:
        return None
    if steps_by_samples.get(0, 0) > _MOST_EMPTY * steps:
        return None
    ran = max(usual)
    mean = sum(samples * count for samples, count in steps_by_samples.items()) / steps
    is_mean = abs(mean - declared) <= _SAME * declared
    return None if is_mean and usual[ran] < _MOST * steps else ran


def other_batch(
    steps_by_samples: Mapping[int, int], declared: int | None
) -> tuple[int | None, tuple[str, ...]]:
    ran = batch_that_ran(steps_by_samples, declared)
    if ran is None:
        return None, ()
    text = f"trained with a global batch of {ran:,} instead of the declared {declared:,}"
    remedy = "pass {local_batch} or {global_batch} to the script, and see that it trains with it"
    return ran, (f"{text}; results use {ran:,}; {remedy}",)
