"""The campaign: walks a plan until every run is done, failed or skipped.

One thread, one loop. Several campaigns may walk one store: a lock per run says whose it is, and
the kernel drops the lock of a campaign that dies.
"""

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Protocol

from wattlaw.errors import one_line
from wattlaw.launch.finish import finish
from wattlaw.launch.launcher import Attempt, Ended, Launcher
from wattlaw.store.record import RunRecord, Status, now
from wattlaw.store.run_folder import RunFolder, RunLock
from wattlaw.store.store import Store
from wattlaw.study.model import Study
from wattlaw.study.plan import PlannedRun

_POLL_S = 0.05
_OTHERS_POLL_S = 0.5


class Observer(Protocol):
    """Is told of every run as it changes."""

    def started(self, record: RunRecord) -> None:
        """Note that a run of this campaign has begun."""

    def ended(self, record: RunRecord, *, here: bool) -> None:
        """Note a run that is done, failed or skipped; not ``here`` if it was so already."""

    def waiting(self, runs: int) -> None:
        """Note that only runs which another campaign holds are left."""


@dataclass(frozen=True)
class Outcome:
    """How many runs of the plan ended how, and what stopped the campaign before its end."""

    done: int
    failed: int
    skipped: int
    left: int
    interrupted_by: str | None = None


@dataclass
class _Own:
    """A run that this campaign has under way."""

    record: RunRecord
    folder: RunFolder
    lock: RunLock
    attempt: Attempt


@dataclass
class _Stop:
    """Set by a signal; the loop looks at it."""

    by: str | None = None


class Campaign:
    """Walks one plan on one store with one launcher."""

    def __init__(
        self,
        study: Study,
        plan: Sequence[PlannedRun],
        store: Store,
        launcher: Launcher,
        observer: Observer,
        git_commit: str | None = None,
    ) -> None:
        self._study, self._plan, self._store = study, plan, store
        self._launcher, self._observer = launcher, observer
        self._git_commit = git_commit
        self._ended: dict[str, Status] = {}
        self._own: list[_Own] = []
        self._tried: dict[str, int] = {}

    def run(self) -> Outcome:
        """Walk the plan to its end, or until SIGINT, SIGTERM or SIGHUP.

        A run that failed before this campaign began is tried again, once; one that any campaign
        has tried since is left as it ended.
        """
        self._write_plan()
        with _signals() as stop:
            try:
                self._walk(stop)
            finally:
                self._stop_all(f"interrupted by {stop.by or 'an error of the launcher'}")
        count = list(self._ended.values()).count
        done, failed, skipped = count("done"), count("failed"), count("skipped")
        left = len(self._plan) - done - failed - skipped
        return Outcome(done, failed, skipped, left, stop.by)

    def _write_plan(self) -> None:
        """Record as planned every run that the store does not know; note what is done already."""
        for planned in self._plan:
            folder = self._store.folder(planned.run_id)
            record = folder.read()
            if record is None:
                with RunLock(folder) as lock:
                    if lock.acquire() and folder.read() is None:
                        folder.write(self._new(planned, attempts=0), durable=False)
                continue
            self._tried[planned.run_id] = record.attempts
            if record.status == "done":
                self._note(record, here=False)

    def _new(self, planned: PlannedRun, attempts: int) -> RunRecord:
        return RunRecord(
            run_id=planned.run_id,
            study=self._study.name,
            spec=planned.spec,
            seed=planned.spec.repeat,
            order_seed=self._study.order_seed,
            attempts=attempts,
            git_commit=self._git_commit,
        )

    def _walk(self, stop: _Stop) -> None:
        waiting = [run for run in self._plan if run.run_id not in self._ended]
        while (waiting or self._own) and stop.by is None:
            self._collect()
            waiting = self._take_what_fits(waiting, stop)
            held_by_others = bool(waiting) and not self._own
            if held_by_others:
                self._observer.waiting(len(waiting))
            time.sleep(_OTHERS_POLL_S if held_by_others else _POLL_S)

    def _take_what_fits(self, waiting: list[PlannedRun], stop: _Stop) -> list[PlannedRun]:
        """Take runs in the plan's order until one has no room; return those still to be had."""
        left: list[PlannedRun] = []
        for index, run in enumerate(waiting):
            refusal = self._launcher.refuses(run.spec)
            no_room = refusal is None and not self._launcher.has_room(run.spec)
            if no_room or stop.by is not None:
                return left + waiting[index:]
            if not self._take(run, refusal):
                left.append(run)
        return left

    def _take(self, run: PlannedRun, refusal: str | None) -> bool:
        """Start or skip a run, or note how it ended; False while another campaign holds it."""
        folder = self._store.folder(run.run_id)
        lock = RunLock(folder)
        if not lock.acquire():
            return False
        old = folder.read()
        tries = old.attempts if old else 0
        tried_elsewhere = tries != self._tried.get(run.run_id, 0)
        if old and (old.status == "done" or (old.status == "failed" and tried_elsewhere)):
            self._note(old, here=False)
            lock.release()
            return True
        if refusal is not None:
            skipped = self._new(run, tries)
            skipped = skipped.model_copy(update={"status": "skipped", "reason": refusal})
            self._end(skipped, folder, lock)
        else:
            self._start(run, tries + 1, folder, lock)
        return True

    def _start(self, run: PlannedRun, attempts: int, folder: RunFolder, lock: RunLock) -> None:
        record = self._new(run, attempts)
        record = record.model_copy(update={"status": "running", "started_at": now()})
        try:
            folder.live(attempts).mkdir(parents=True)
            folder.write(record)
            attempt = self._launcher.start(record, folder)
        except OSError as error:
            self._end(_failed(record, f"could not be started: {one_line(error)}"), folder, lock)
            return
        self._own.append(_Own(record, folder, lock, attempt))
        self._observer.started(record)

    def _collect(self) -> None:
        """Bring home every attempt of ours that has ended."""
        for own in list(self._own):
            ended = own.attempt.poll()
            if ended is not None:
                self._own.remove(own)
                self._end(_result(own, ended), own.folder, own.lock)

    def _stop_all(self, reason: str) -> None:
        while self._own:
            own = self._own.pop()
            own.attempt.stop()
            self._end(_failed(own.record, reason), own.folder, own.lock)

    def _end(self, record: RunRecord, folder: RunFolder, lock: RunLock) -> None:
        record = record.model_copy(update={"finished_at": now()})
        folder.write(record)
        if record.status == "done":
            folder.drop_live()
        lock.release()
        self._note(record, here=True)

    def _note(self, record: RunRecord, *, here: bool) -> None:
        self._ended[record.run_id] = record.status
        self._observer.ended(record, here=here)


def _result(own: _Own, ended: Ended) -> RunRecord:
    if ended.reason is not None:
        return _failed(own.record, ended.reason)
    try:
        return finish(own.record, own.folder)
    except Exception as error:  # one run's end must not be the campaign's
        return _failed(own.record, f"could not be finished: {one_line(error)}")


def _failed(record: RunRecord, reason: str) -> RunRecord:
    return record.model_copy(update={"status": "failed", "reason": reason})


@contextmanager
def _signals() -> Iterator[_Stop]:
    """Turn the signals that ask a program to end into a note that the loop reads."""
    stop = _Stop()

    def note(number: int, _: FrameType | None) -> None:
        stop.by = signal.Signals(number).name

    asked = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, note) for number in asked}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
