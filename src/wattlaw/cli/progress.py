"""How a campaign is shown: a live bar on a terminal, plain lines elsewhere."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from wattlaw.launch.campaign import Observer
from wattlaw.store.record import RunRecord


@contextmanager
def observer_for(console: Console, runs: int) -> Iterator[Observer]:
    """Give the observer that suits where the output goes."""
    if not console.is_terminal:
        yield PlainLines(console, runs)
        return
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[counts]}"),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console) as progress:
        yield LiveBar(progress, progress.add_task("", total=runs, counts=""), runs)


class Tally:
    """Counts ends, and estimates the time to go from the runs that this campaign has done."""

    def __init__(self, runs: int) -> None:
        self._runs = runs
        self._begun_s = time.monotonic()
        self.count = {"done": 0, "failed": 0, "skipped": 0}
        self._worked = 0

    def ended(self, record: RunRecord, *, here: bool) -> None:
        """Count one run."""
        self.count[record.status] += 1
        self._worked += here and record.status != "skipped"

    @property
    def left(self) -> int:
        """Return how many runs have not ended."""
        return self._runs - sum(self.count.values())

    def words(self) -> str:
        """Return finished, failed, left and time to go."""
        words = f"{self.count['done']} done, {self.count['failed']} failed, {self.left} left"
        if self._worked and self.left:
            to_go_s = (time.monotonic() - self._begun_s) / self._worked * self.left
            words += f", about {_clock(to_go_s)} to go"
        return words


class LiveBar:
    """A progress bar that is redrawn in place."""

    def __init__(self, progress: Progress, task: TaskID, runs: int) -> None:
        self._progress, self._task = progress, task
        self._tally = Tally(runs)

    def started(self, record: RunRecord) -> None:
        """Show what is running."""
        self._update(f"running {title(record)}")

    def ended(self, record: RunRecord, *, here: bool) -> None:
        """Move the bar; print a line for what did not go well."""
        self._tally.ended(record, here=here)
        if here and record.status != "done":
            self._progress.console.print(
                f"{record.status}: {escape(title(record))}: {escape(record.reason or '')}"
            )
        self._progress.advance(self._task)
        self._update("")

    def waiting(self, runs: int) -> None:
        """Say what the campaign waits for."""
        self._update(f"waiting for {runs} runs of another wattlaw run")

    def _update(self, text: str) -> None:
        self._progress.update(self._task, description=escape(text), counts=self._tally.words())


class PlainLines:
    """One line per run, for logs and pipes."""

    def __init__(self, console: Console, runs: int) -> None:
        self._console, self._runs = console, runs
        self._tally = Tally(runs)
        self._waiting = 0

    def started(self, record: RunRecord) -> None:
        """Say nothing: the end will be told."""

    def ended(self, record: RunRecord, *, here: bool) -> None:
        """Print how a run ended, unless it had ended before."""
        self._tally.ended(record, here=here)
        if here:
            reason = f": {record.reason}" if record.reason else ""
            self._print(f"{record.status}: {title(record)}{reason} ({self._tally.words()})")

    def waiting(self, runs: int) -> None:
        """Say once per number what the campaign waits for."""
        if runs != self._waiting:
            self._waiting = runs
            self._print(f"waiting for {runs} runs of another wattlaw run")

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def title(record: RunRecord) -> str:
    """Return a run in words."""
    setting = record.spec.setting
    return (
        f"{record.spec.workload.name} on {setting.gpus} x {setting.local_batch} "
        f"(repeat {record.spec.repeat}, {record.run_id})"
    )


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
