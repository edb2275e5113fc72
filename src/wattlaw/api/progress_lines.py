"""The progress of a campaign as lines of text."""

import time
from collections.abc import Callable
from datetime import timedelta

from wattlaw.common.text import collapse_whitespace
from wattlaw.running.campaign import Observer
from wattlaw.running.run_status import run_title
from wattlaw.store.record import RunRecord
from wattlaw.study.out_of_memory import OUT_OF_MEMORY

_REPEAT_NOTE_S = 60.0


class Tally:
    """Counts the runs that ended, and estimates the time that remains.

    In a study that ``decides``, not all runs are needed, so that no time is estimated.
    """

    def __init__(self, runs: int, *, decides: bool = False) -> None:
        self._runs, self._decides = runs, decides
        self._started_s = self._last_s = time.monotonic()
        self._count = {"done": 0, "failed": 0, OUT_OF_MEMORY: 0, "skipped": 0}
        self._worked = 0

    def ended(self, record: RunRecord, *, is_new: bool) -> None:
        """Count a run."""
        if record.state in self._count:
            self._count[record.state] += 1
        self._worked += is_new and record.status != "skipped"
        self._last_s = time.monotonic()

    def __str__(self) -> str:
        left = self._runs - sum(self._count.values())
        always = ("done", "failed")
        counts = [f"{n} {state}" for state, n in self._count.items() if n or state in always]
        text = ", ".join([*counts, f"at most {left} left" if self._decides else f"{left} left"])
        if self._worked and left and not self._decides:
            per_run_s = (self._last_s - self._started_s) / self._worked
            remaining_s = per_run_s * left - (time.monotonic() - self._last_s)
            text += f", about {timedelta(seconds=round(max(0.0, remaining_s)))} to go"
        return text


class LineProgress(Observer):
    """Writes a line for each run that ends, and for each new message of the launcher."""

    def __init__(self, write: Callable[[str], object], runs: int, *, decides: bool = False) -> None:
        self._write_line = write
        self._tally = Tally(runs, decides=decides)
        self._waiting = 0
        self._noted, self._next_note_s = "", 0.0

    def ended(self, record: RunRecord, *, is_new: bool) -> None:
        """Write how a run ended, unless it had ended before this campaign."""
        self._tally.ended(record, is_new=is_new)
        if is_new:
            reason = f": {record.reason}" if record.reason else ""
            self._write(f"{record.state}: {title(record)}{reason} ({self._tally})")

    def waiting(self, runs: int) -> None:
        """Write what the campaign waits for, once per number of runs."""
        if runs != self._waiting:
            self._waiting = runs
            self._write(waiting_text(runs))

    def note(self, message: str) -> None:
        """Write a new message at once, and a repeated one every minute."""
        subject = message.partition(":")[0]
        if subject != self._noted or time.monotonic() > self._next_note_s:
            self._noted, self._next_note_s = subject, time.monotonic() + _REPEAT_NOTE_S
            self._write(message)

    def decided(self, message: str) -> None:
        """Write the lines of the decision."""
        for line in message.splitlines():
            self._write(line)

    def _write(self, line: str) -> None:
        self._write_line(collapse_whitespace(line))


def title(record: RunRecord) -> str:
    """Return the name of a run: workload, size, limits, repeat and id."""
    spec = record.spec
    names = {"workload": spec.workload.name, "repeat": spec.repeat, "nodes": spec.nodes}
    values = vars(spec.setting) | names | {"local_batch": spec.local_batch}
    return run_title(record.run_id, values)


def waiting_text(runs: int) -> str:
    """Return why a campaign waits."""
    return f"waiting: another wattlaw run uses this machine or one of the {runs} remaining runs"
