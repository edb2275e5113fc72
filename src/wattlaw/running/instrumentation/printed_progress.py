"""Progress that a program prints: steps, samples or epochs, from the lines of its output."""

import re
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any

import numpy as np
from pydantic import ValidationError

from wattlaw.common.errors import BadInput
from wattlaw.running.instrumentation.records import ProcessSteps
from wattlaw.study.command import LogProgress

_MOST_LINE_BYTES = 4096
_MAX_MARKS, _MAX_COUNT = 10**7, 2**53
#: Steps between lines, in all: each takes memory, and a line costs its writer nothing.
_MAX_BETWEEN = 10**7


@dataclass(frozen=True)
class Mark:
    time_s: float  # at which its line was read
    epoch: int | None = None
    step: int | None = None
    samples: int | None = None
    loss: float | None = None
    metric: float | None = None


def progress_pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(LogProgress(pattern=text).pattern)
    except ValidationError as error:
        raise BadInput(f"progress: {error.errors()[0]['msg']}") from None


@dataclass
class ProgressReader:
    r"""Searches the output of a program; a line ends with ``\n`` or ``\r``."""

    pattern: re.Pattern[str]
    marks: list[Mark] = field(default_factory=list)
    _rest: bytes = b""

    def feed(self, piece: bytes, time_s: float) -> None:
        lines = (self._rest + piece).replace(b"\r", b"\n").split(b"\n")
        self._rest = lines.pop()[:_MOST_LINE_BYTES]
        for line in lines:
            match = self.pattern.search(line[:_MOST_LINE_BYTES].decode("utf-8", "replace"))
            mark = None if match is None else _mark(match, time_s)
            if mark is not None and len(self.marks) < _MAX_MARKS:
                self.marks.append(mark)

    def process(self) -> ProcessSteps:
        """The steps between two lines share the time alike. Where their number goes back, as in an
        epoch that counts anew, the steps in between are one step of unknown end (NaN). So are those
        between lines after ``_MAX_BETWEEN`` such steps in all."""
        with_step = (mark for mark in self.marks if mark.step is not None)
        marks = [next(equal) for _, equal in groupby(with_step, lambda mark: mark.step)]
        between = 0
        ends = [np.array([mark.time_s for mark in marks[:1]])]
        samples = [np.full(len(marks[:1]), np.nan)]
        for before, mark in pairwise(marks):
            count = (mark.step or 0) - (before.step or 0)
            if not 0 <= count <= _MAX_BETWEEN - between:
                ends.append(np.array([np.nan, mark.time_s]))
                samples.append(np.array([np.nan, np.nan]))
                continue
            between += count
            ends.append(np.linspace(before.time_s, mark.time_s, count + 1)[1:])
            more = (mark.samples or 0) - (before.samples or 0)
            is_known = None not in (before.samples, mark.samples) and more >= 0
            samples.append(np.full(count, more / count if is_known else np.nan))
        return ProcessSteps("", 0, np.concatenate(ends), np.concatenate(samples))

    def total_steps(self) -> int | None:
        """Return the number of steps; None where it goes back. The first may have the number 0."""
        numbers = [mark.step or 0 for mark in self.marks if mark.step is not None]
        if not numbers or numbers != sorted(numbers):
            return None
        return max(numbers[-1], numbers[-1] - numbers[0] + 1)

    def total_samples(self) -> int | None:
        numbers = [mark.samples for mark in self.marks if mark.samples is not None]
        return numbers[-1] if numbers and numbers == sorted(numbers) else None

    def epoch_windows(self) -> list[dict[str, Any]]:
        """The first is warm-up where there are several: it may contain the program's start."""
        if "step" in self.pattern.groupindex:
            return []
        firsts = [next(marks) for _, marks in groupby(self.marks, lambda mark: mark.epoch)]
        return [
            {
                "epoch": number,
                "phase": "train",
                "warmup": number == 0 and len(firsts) > 2,
                "start_ns": int(begin.time_s * 1e9),
                "duration_s": end.time_s - begin.time_s,
            }
            for number, (begin, end) in enumerate(pairwise(firsts))
        ]

    def last(self, name: str) -> float | None:
        values = (getattr(mark, name) for mark in reversed(self.marks))
        return next((value for value in values if value is not None), None)


def _mark(match: re.Match[str], time_s: float) -> Mark | None:
    values: dict[str, float] = {}
    for name, text in match.groupdict().items():
        try:
            value = float((text or "").replace(",", "")[:40])
        except ValueError:
            continue
        if name in ("loss", "metric") or 0 <= value < _MAX_COUNT:
            values[name] = value if name in ("loss", "metric") else int(value)
    if not {"step", "epoch"} & values.keys():
        return None
    return Mark(time_s, **values)  # type: ignore[arg-type]
