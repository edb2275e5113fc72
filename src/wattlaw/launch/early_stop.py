"""Runs that a decision does not need to their end: their step time so far, and their early end."""

from wattlaw.errors import one_line
from wattlaw.launch.finish import finalize_run
from wattlaw.store.record import RunRecord
from wattlaw.store.run_folder import RunFolder

#: The start of the note of a run that was stopped.
STOPPED_EARLY = "stopped early: "
#: A run is measured for this time, without warm-up, before it may be stopped.
LEAST_S = 10.0
#: Windows of optimizer steps.
_PHASES = ("train", "steps")


def step_s_so_far(folder: RunFolder) -> float | None:
    """Return the mean step time of an active run; None before it was measured for long enough."""
    record = folder.read()
    if record is None or not record.attempts:
        return None
    seconds: dict[str, float] = {}
    steps: dict[str, int] = {}
    for row in folder.windows(record.attempts).to_pylist():
        if row["phase"] in _PHASES and not (row["warmup"] or row["interrupted"]):
            host = row["host"]
            seconds[host] = seconds.get(host, 0.0) + (row["duration_s"] or 0.0)
            steps[host] = steps.get(host, 0) + (row["steps"] or 0)
    if len(steps) < record.spec.nodes or min(steps.values()) < 1 or min(seconds.values()) < LEAST_S:
        return None
    return max(seconds[host] / steps[host] for host in steps)


def end_early(record: RunRecord, folder: RunFolder, reason: str) -> RunRecord:
    """Return the record of a stopped run as done, with what it has measured and the reason.

    It has failed where this cannot be used.
    """
    reason = f"{STOPPED_EARLY}{reason}"
    try:
        record = folder.read() or record  # a job writes it
        if record.status == "done":
            return record
        changes = {"notes": (*record.notes, reason), "interrupted": False}
        return finalize_run(record.model_copy(update=changes), folder)
    except Exception as error:  # one run must not end the campaign
        changes = {"status": "failed", "reason": f"{reason}; not usable: {one_line(error)}"}
        return record.model_copy(update=changes)
