"""How a campaign is shown: a live bar on a terminal, plain lines elsewhere."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from wattlaw.cli.common.console import Console
from wattlaw.launch.campaign import Observer
from wattlaw.store.record import RunRecord
from wattlaw.terminal import escaped_output
from wattlaw.text import collapse_whitespace

_NOTES_S = 60.0


@contextmanager
def observer_for(console: Console, runs: int) -> Iterator[Observer]:
    """Give the observer that suits where the output goes."""
    if not console.is_terminal:
        yield PlainLines(console, runs)
        return
    tally = Tally(runs)
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        _Counts(tally),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    # Progress replaces the streams, and would take colour codes in what is printed meanwhile.
    with Progress(*columns, console=console) as progress, escaped_output():
        yield LiveBar(progress, progress.add_task("", total=runs), tally)


class Tally:
    """Counts ends, and estimates the time to go from the runs that this campaign has done."""

    def __init__(self, runs: int) -> None:
        self._runs = runs
        self._begun_s = self._last_s = time.monotonic()
        self.count = {"done": 0, "failed": 0, "skipped": 0}
        self._worked = 0

    def ended(self, record: RunRecord, *, here: bool) -> None:
        """Count one run."""
        self.count[record.status] += 1
        self._worked += here and record.status != "skipped"
        self._last_s = time.monotonic()

    @property
    def left(self) -> int:
        """Return how many runs have not ended."""
        return self._runs - sum(self.count.values())

    def words(self) -> str:
        """Return finished, failed, left and time to go."""
        words = f"{self.count['done']} done, {self.count['failed']} failed, {self.left} left"
        if self._worked and self.left:
            per_run_s = (self._last_s - self._begun_s) / self._worked
            to_go_s = per_run_s * self.left - (time.monotonic() - self._last_s)
            words += f", about {_clock(max(0.0, to_go_s))} to go"
        return words


class _Counts(ProgressColumn):
    """The tally in words, with the time to go as it is at each redrawing."""

    def __init__(self, tally: Tally) -> None:
        super().__init__()
        self._tally = tally

    def render(self, task: Task) -> Text:  # noqa: ARG002 - the tally is the same for any task
        """Return the words."""
        return Text(self._tally.words())


class LiveBar:
    """A progress bar that is redrawn in place."""

    def __init__(self, progress: Progress, task: TaskID, tally: Tally) -> None:
        self._progress, self._task = progress, task
        self._tally = tally
        self._running: dict[str, str] = {}

    def started(self, record: RunRecord) -> None:
        """Show what is running."""
        self._running[record.run_id] = title(record)
        self._show_running()

    def ended(self, record: RunRecord, *, here: bool) -> None:
        """Move the bar; print a line for what did not go well."""
        self._tally.ended(record, here=here)
        if here and record.status != "done":
            line = f"{record.status}: {title(record)}: {record.reason or ''}"
            self._progress.console.print(collapse_whitespace(line))
        self._running.pop(record.run_id, None)
        self._progress.advance(self._task)
        self._show_running()

    def waiting(self, runs: int) -> None:
        """Say what the campaign waits for."""
        self._update(_waiting(runs))

    def noted(self, words: str) -> None:
        """Say how the launcher says that things stand."""
        self._update(words)

    def _show_running(self) -> None:
        titles = list(self._running.values())
        more = f" and {len(titles) - 1} more" if len(titles) > 1 else ""
        self._update(f"running {titles[-1]}{more}" if titles else "")

    def _update(self, text: str) -> None:
        self._progress.update(self._task, description=text)


class PlainLines:
    """One line per run, for logs and pipes."""

    def __init__(self, console: Console, runs: int) -> None:
        self._console, self._runs = console, runs
        self._tally = Tally(runs)
        self._waiting = 0
        self._noted, self._next_note_s = "", 0.0

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
            self._print(_waiting(runs))

    def noted(self, words: str) -> None:
        """Print news at once, and what goes on as before once a minute: a log is read later."""
        about = words.partition(":")[0]
        if about != self._noted or time.monotonic() > self._next_note_s:
            self._noted, self._next_note_s = about, time.monotonic() + _NOTES_S
            self._print(words)

    def _print(self, line: str) -> None:
        self._console.print(collapse_whitespace(line), soft_wrap=True)


def title(record: RunRecord) -> str:
    """Return a run in words."""
    setting = record.spec.setting
    size = f" on {setting.gpus} x {setting.local_batch}" if setting.local_batch else ""
    return f"{record.spec.workload.name}{size} (repeat {record.spec.repeat}, {record.run_id})"


def _waiting(runs: int) -> str:
    return f"waiting for another wattlaw run, which has this machine or the {runs} runs left"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
