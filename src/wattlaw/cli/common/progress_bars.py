"""Progress of a study on the terminal."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from rich import progress as bars

from wattlaw.api.progress_lines import LineProgress, Tally, title, waiting_text
from wattlaw.cli.common.console import Console
from wattlaw.common.terminal import escaped_output
from wattlaw.common.text import collapse_whitespace
from wattlaw.running.campaign import Observer
from wattlaw.store.record import RunRecord


@contextmanager
def observer_for(console: Console, runs: int, *, decides: bool = False) -> Iterator[Observer]:
    """Yield the observer that suits the output: a live bar or plain lines.

    A study that ``decides`` does not need all of its runs.
    """
    if not console.is_terminal:
        yield LineProgress(partial(console.print, soft_wrap=True), runs, decides=decides)
        return
    tally = Tally(runs, decides=decides)
    columns = (
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TextColumn("{task.fields[tally]}", markup=False),  # with the remaining time
        bars.TimeElapsedColumn(),
        bars.TextColumn("{task.description}", markup=False),
    )
    # Progress replaces the streams, and would take colour codes in what is printed meanwhile.
    with bars.Progress(*columns, console=console) as progress, escaped_output():
        yield LiveBar(progress, progress.add_task("", total=runs, tally=tally), tally)


class LiveBar(Observer):
    def __init__(self, progress: bars.Progress, task: bars.TaskID, tally: Tally) -> None:
        self._progress, self._task = progress, task
        self._tally = tally
        self._running: dict[str, str] = {}

    def started(self, record: RunRecord) -> None:
        self._running[record.run_id] = title(record)
        self._show_running()

    def ended(self, record: RunRecord, *, is_new: bool) -> None:
        self._tally.ended(record, is_new=is_new)
        if is_new and record.status != "done":
            line = f"{record.state}: {title(record)}: {record.reason or ''}"
            self._progress.console.print(collapse_whitespace(line))
        self._running.pop(record.run_id, None)
        self._progress.advance(self._task)
        self._show_running()

    def waiting(self, runs: int) -> None:
        self.note(waiting_text(runs))

    def note(self, message: str) -> None:
        self._progress.update(self._task, description=message)

    def decided(self, message: str) -> None:
        for line in message.splitlines():
            self._progress.console.print(collapse_whitespace(line))

    def _show_running(self) -> None:
        titles = list(self._running.values())
        more = f" and {len(titles) - 1} more" if len(titles) > 1 else ""
        self.note(f"running {titles[-1]}{more}" if titles else "")
