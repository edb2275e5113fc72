"""A bar for long work, such as the first reading of a large store."""

import time
from typing import Any

_SHOWN_AFTER_S = 2.0


class WorkBar:
    """A bar on standard error for work that takes longer than ``_SHOWN_AFTER_S``."""

    def __init__(self) -> None:
        self._started_s: dict[str, float] = {}
        self._bar: Any = None
        self._task: Any = None

    def __call__(self, what: str, done: int, total: int | None) -> None:
        """Show how much is done; the bar is removed after the last item."""
        started_s = self._started_s.setdefault(what, time.monotonic())
        if self._bar is None and time.monotonic() - started_s >= _SHOWN_AFTER_S:
            self._bar = _new_bar()
            self._task = self._bar.add_task(what, total=total)
            self._bar.start()
        if self._bar is not None:
            self._bar.update(self._task, description=what, completed=done, total=total)
        if done == total:
            self._started_s.pop(what)
            self.stop()

    def stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _new_bar() -> Any:
    from rich import progress as bars

    from wattlaw.cli.common.console import Console

    columns = (bars.TextColumn("{task.description}", markup=False), bars.BarColumn())
    clock = bars.TimeElapsedColumn()
    return bars.Progress(*columns, clock, console=Console(stderr=True), transient=True)
