"""Which runs a campaign starts, and stops early, where a chooser decides."""

import contextlib
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from wattlaw.common.errors import BadInput, NotPermitted
from wattlaw.running.early_stop import StepTime, step_time_so_far
from wattlaw.store.run_folder import RunFolder, RunLock
from wattlaw.store.store import Store
from wattlaw.study.plan import PlannedRun

#: The start of the reason of a planned run that a decision does not need.
NOT_NEEDED = "not needed: "
_READ_S = 2.0


@dataclass(frozen=True)
class Choice:
    """The runs to start now, and a message for the user."""

    runs: Sequence[PlannedRun]
    message: str
    stopped_because: str | None = None  # set once no further run is needed


class Chooser(Protocol):
    """Chooses the next runs by the results of those that have ended."""

    def choose(self, pending: Sequence[PlannedRun], active: Sequence[PlannedRun]) -> Choice:
        """Return the runs to start beside the active ones, each of which is pending."""

    def stop_reason(self, run_id: str, measured: StepTime) -> str | None:
        """Return why an active run is not needed to its end, or None."""


@dataclass
class Selection:
    """The runs of a plan that a chooser has chosen, and those that are not needed."""

    _plan: Sequence[PlannedRun]
    _store: Store
    _chooser: Chooser
    stopped_because: str | None = None
    not_needed: int = 0
    chosen: set[str] = field(default_factory=set)  # run ids
    #: How many runs had ended at the last choice.
    _ended_at_choice: int = -1
    #: When the step times of active runs were last read, and those that were not a reason to stop.
    _read_s: float = 0.0
    _kept: dict[str, StepTime] = field(default_factory=dict)

    def choose(
        self, pending: Sequence[PlannedRun], active: Collection[str], ended: Collection[str]
    ) -> str | None:
        """Add to ``chosen`` at the beginning and whenever runs have ended; return the message.

        ``active`` and ``ended`` are run ids.
        """
        if self._ended_at_choice == len(ended):
            return None
        self._ended_at_choice = len(ended)
        started = self.chosen.union(active).difference(ended)
        choice = self._chooser.choose(
            [run for run in pending if run.run_id not in self.chosen],
            [run for run in self._plan if run.run_id in started],
        )
        self.chosen |= {run.run_id for run in choice.runs}
        self.stopped_because = choice.stopped_because
        return choice.message

    def stop_early(self, active: Iterable[RunFolder]) -> dict[str, str]:
        """Return the active runs that are not needed to their end, each with the reason."""
        reasons: dict[str, str] = {}
        if time.monotonic() < self._read_s + _READ_S:
            return reasons
        self._read_s = time.monotonic()
        for folder in active:
            # A job may remove its live files at any time.
            with contextlib.suppress(BadInput, NotPermitted, OSError):
                measured = step_time_so_far(folder)
                if measured is None or measured == self._kept.get(folder.run_id):
                    continue
                self._kept[folder.run_id] = measured
                if reason := self._chooser.stop_reason(folder.run_id, measured):
                    reasons[folder.run_id] = reason
        return reasons

    def mark_not_needed(self, pending: Sequence[PlannedRun]) -> None:
        """Record why the remaining runs stay planned; a later campaign may start them."""
        self.not_needed = len(pending)
        for planned in pending:
            folder = self._store.folder(planned.run_id)
            changes = {"reason": f"{NOT_NEEDED}{self.stopped_because}"}
            # A damaged record is no reason to end without the decision; status names it.
            with contextlib.suppress(BadInput, NotPermitted), RunLock(folder) as lock:
                record = folder.read() if lock.acquire() else None
                if record is not None and record.status == "planned":
                    folder.write(record.model_copy(update=changes), durable=False)
