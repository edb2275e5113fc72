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


class LineProgress(Observer):
    """Writes a line for each run that ends, and for each new message of the launcher.

    In a study that ``decides``, not all runs are needed, so that no remaining time is estimated.
    """

    def __init__(self, write: Callable[[str], object], runs: int, *, decides: bool = False) -> None:
        self._write_line, self._runs, self._decides = write, runs, decides
        self._started_s = self._last_s = time.monotonic()
        self._count = {"done": 0, "failed": 0, OUT_OF_MEMORY: 0, "skipped": 0}
        self._worked = self._waiting = 0
        self._noted, self._next_note_s = "", 0.0

    def ended(self, record: RunRecord, *, is_new: bool) -> None:
        """Write how a run ended, and how many are left, unless it had ended before."""
        if record.state in self._count:
            self._count[record.state] += 1
        self._worked += is_new and record.status != "skipped"
        self._last_s = time.monotonic()
        if is_new:
            spec = record.spec
            names = {"workload": spec.workload.name, "repeat": spec.repeat, "nodes": spec.nodes}
            values = vars(spec.setting) | names | {"local_batch": spec.local_batch}
            reason = f": {record.reason}" if record.reason else ""
            title = run_title(record.run_id, values)
            self._write(f"{record.state}: {title}{reason} ({self._counts()})")

    def _counts(self) -> str:
        left = self._runs - sum(self._count.values())
        always = ("done", "failed")
        counts = [f"{n} {state}" for state, n in self._count.items() if n or state in always]
        text = ", ".join([*counts, f"at most {left} left" if self._decides else f"{left} left"])
        if self._worked and left and not self._decides:
            remaining_s = (self._last_s - self._started_s) / self._worked * left
            text += f", about {timedelta(seconds=round(remaining_s))} to go"
        return text

    def waiting(self, runs: int) -> None:
        """Write what the campaign waits for, once per number of runs."""
        if runs != self._waiting:
            self._waiting = runs
            what = f"this machine or one of the {runs} remaining runs"
            self._write(f"waiting: another wattlaw run uses {what}")

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
