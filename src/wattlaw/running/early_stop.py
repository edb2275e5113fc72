"""Runs that a decision does not need to their end: their step time so far, and their early end."""

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any, NamedTuple

from wattlaw.common.errors import one_line
from wattlaw.running.finish import failed, finalize_run
from wattlaw.store.record import RunRecord
from wattlaw.store.run_folder import RunFolder
from wattlaw.study.sources import TRAINING

#: The start of the note of a run that was stopped.
STOPPED_EARLY = "stopped early: "
#: A run is measured for this time, without warm-up, before it may be stopped.
LEAST_S = 10.0
#: Windows before which an error of the step time is not known.
_LEAST_WINDOWS = 3


class StepTime(NamedTuple):
    """The mean step time of an active run, and its standard error as a share of it."""

    step_s: float
    error: float | None  # None while fewer than three windows are complete


def step_time_so_far(folder: RunFolder) -> StepTime | None:
    """Return the step time of an active run; None before it was measured for long enough."""
    record = folder.read()
    if record is None or not record.attempts:
        return None
    windows: dict[str, list[Mapping[str, Any]]] = {}
    for row in folder.windows(record.attempts).to_pylist():
        is_complete = row["steps"] and row["duration_s"]
        if row["phase"] in TRAINING and not (row["warmup"] or row["interrupted"]) and is_complete:
            windows.setdefault(row["host"], []).append(row)
    seconds = [sum(row["duration_s"] for row in rows) for rows in windows.values()]
    if len(windows) < record.spec.nodes or min(seconds) < LEAST_S:
        return None
    return max(map(_step_time, windows.values()), key=lambda item: item.step_s)


def _step_time(rows: Sequence[Mapping[str, Any]]) -> StepTime:
    """Return the step time of a host's windows.

    Steps of a window may be alike, and differ from those of another: the larger of the errors by
    steps and by windows counts.
    """
    steps = sum(row["steps"] for row in rows)
    mean_s = sum(row["duration_s"] for row in rows) / steps
    if len(rows) < _LEAST_WINDOWS:
        return StepTime(mean_s, None)
    means = [row["duration_s"] / row["steps"] for row in rows]
    between = sum(
        row["steps"] / steps * (mean / mean_s - 1) ** 2
        for row, mean in zip(rows, means, strict=True)
    )
    within = sum(
        row["steps"] * ((row["step_time_cv"] or 0.0) * mean / mean_s) ** 2
        for row, mean in zip(rows, means, strict=True)
    )
    return StepTime(mean_s, sqrt(max(between / (len(rows) - 1), within / steps**2)))


def end_early(record: RunRecord, folder: RunFolder, reason: str) -> RunRecord:
    """Return the record of a stopped run as done, with the reason; as failed if it is unusable."""
    reason = f"{STOPPED_EARLY}{reason}"
    try:
        record = folder.read() or record  # a job writes it
        if record.status == "done":
            return record
        changes = {"notes": (*record.notes, reason), "interrupted": False}
        return finalize_run(record.model_copy(update=changes), folder)
    except Exception as error:  # one run must not end the campaign
        return failed(record, f"{reason}; not usable: {one_line(error)}")
