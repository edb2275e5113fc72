"""The campaign: walks a plan until every run is done, failed or skipped.

One thread, one loop. Several campaigns may walk one store: a lock per run says whose it is, and
the kernel drops the lock of a campaign that dies.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from wattlaw.errors import BadInput, NotAvailable, NotPermitted, WattlawError, one_line
from wattlaw.launch.finish import finish
from wattlaw.launch.launcher import Allocation, Attempt, Ended, Launcher, ResourcesBusy
from wattlaw.launch.stop import Stop, stopping
from wattlaw.store.record import RunRecord, Status, now
from wattlaw.store.run_folder import RunFolder, RunLock
from wattlaw.store.store import Store
from wattlaw.study.model import Study
from wattlaw.study.plan import PlannedRun

_POLL_S = 0.05
#: Shorter than the pause after a run's end, so that two campaigns on one machine take turns.
_ROOM_POLL_S = 0.02
_OTHERS_POLL_S = 0.5


class Observer(Protocol):
    """Is told of every run as it changes."""

    def started(self, record: RunRecord) -> None:
        """Note that a run of this campaign has begun."""

    def ended(self, record: RunRecord, *, here: bool) -> None:
        """Note a run that is done, failed or skipped; not ``here`` if it was so already."""

    def waiting(self, runs: int) -> None:
        """Note that another campaign holds the runs that are left, or the room for them."""

    def noted(self, words: str) -> None:
        """Note how the launcher says that things stand."""


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
        self._tried: dict[str, datetime | None] = {}
        self._words: str | None = None

    def run(self) -> Outcome:
        """Walk the plan to its end, or until SIGINT, SIGTERM, SIGHUP or ``wattlaw cancel``.

        A run that failed before this campaign began is tried again, once; one that any campaign
        has tried since is left as it ended.
        """
        self._store.remove_abandoned()
        self._write_plan()
        with stopping(self._store) as stop:
            try:
                self._walk(stop)
            finally:
                if self._launcher.queue is not None and not stop.is_cancelled:
                    self._leave_all()
                self._stop_all(f"interrupted by {stop.by or 'an error of the launcher'}")
        count = list(self._ended.values()).count
        done, failed, skipped = count("done"), count("failed"), count("skipped")
        left = len(self._plan) - done - failed - skipped
        return Outcome(done, failed, skipped, left, stop.by)

    def _write_plan(self) -> None:
        """Record as planned every run that the store does not know; note what is done already."""
        for planned in self._plan:
            folder = self._store.folder(planned.run_id)
            try:
                record = folder.read()
                if record is None:
                    with RunLock(folder) as lock:
                        if lock.acquire() and folder.read() is None:
                            folder.write(self._new(planned, attempts=0), durable=False)
                    continue
            except (BadInput, NotPermitted) as error:
                self._note(self._damaged(planned, error), here=True)
                continue
            self._tried[planned.run_id] = record.finished_at
            if record.status == "done":
                folder.remove_stale_live_files()
                self._note(record, here=False)

    def _damaged(self, run: PlannedRun, error: WattlawError) -> RunRecord:
        """Return as failed a run whose folder cannot be used; nothing there is changed."""
        return _failed(self._new(run, attempts=0), str(error))

    def _new(self, planned: PlannedRun, attempts: int) -> RunRecord:
        return RunRecord(
            run_id=planned.run_id,
            study=self._study.name,
            spec=planned.spec,
            seed=planned.spec.train.seed + planned.spec.repeat,
            order_seed=self._study.order_seed,
            attempts=attempts,
            git_commit=self._git_commit,
        )

    def _walk(self, stop: Stop) -> None:
        waiting = [run for run in self._plan if run.run_id not in self._ended]
        while (waiting or self._own) and stop.by is None:
            waiting = self._take_up(waiting)
            waiting, no_room = self._take_what_fits(waiting, stop)
            self._tell()
            if waiting and not self._own:
                self._observer.waiting(len(waiting))
                time.sleep(_ROOM_POLL_S if no_room else _OTHERS_POLL_S)
            elif self._own:
                self._collect()
                time.sleep(_POLL_S)
            stop.look()

    def _tell(self) -> None:
        """Pass on what the launcher says, when it says something new."""
        words = self._launcher.status_message()
        if words and words != self._words:
            self._observer.noted(words)
        self._words = words

    def _take_up(self, waiting: list[PlannedRun]) -> list[PlannedRun]:
        """Watch the runs that go on without anybody; return the others. They need no room."""
        detached = self._launcher.detached_run_ids()
        return [
            run for run in waiting if run.run_id not in detached or not self._take(run, None, None)
        ]

    def _take_what_fits(
        self, waiting: list[PlannedRun], stop: Stop
    ) -> tuple[list[PlannedRun], bool]:
        """Take runs in the plan's order until one has no room.

        Returns the runs that are still to be had, and whether room was what they lacked.
        """
        left: list[PlannedRun] = []
        for index, run in enumerate(waiting):
            refusal = self._launcher.unsupported_reason(run.spec)
            allocation = self._launcher.allocate(run.spec) if refusal is None else None
            no_room = refusal is None and allocation is None
            if no_room or stop.by is not None:
                if allocation is not None:
                    allocation.release()
                return left + waiting[index:], no_room
            if not self._take(run, refusal, allocation):
                left.append(run)
        return left, False

    def _take(self, run: PlannedRun, refusal: str | None, allocation: Allocation | None) -> bool:
        """Watch, start or skip a run, or note how it ended.

        Returns False if it is still to be had: another campaign holds it, or it has no room yet.
        """
        folder = self._store.folder(run.run_id)
        lock = RunLock(folder)
        try:
            if not lock.acquire():
                _let_go(allocation)
                return False
            old, attempt, is_damaged = folder.read(), None, False
            is_over = old is not None and self._has_ended(old)
            if old is not None and not is_over:
                attempt = self._launcher.reattach(old, folder)
        except (BadInput, NotPermitted) as error:
            old, is_over, is_damaged = self._damaged(run, error), True, True
        if old is not None and is_over:
            _let_go(allocation, lock)
            self._note(old, here=is_damaged)
            return True
        if old is not None and attempt is not None:
            _let_go(allocation)
            self._watch(_Own(old, folder, lock, attempt))
            return True
        if allocation is not None:
            return self._start(run, old, folder, lock, allocation)
        if refusal is not None:
            skipped = self._new(run, old.attempts if old else 0)
            skipped = skipped.model_copy(update={"status": "skipped", "reason": refusal})
            self._end(skipped, folder, lock)
            return True
        lock.release()
        return False

    def _has_ended(self, old: RunRecord) -> bool:
        """Say whether a run needs nothing more: done, or failed by itself since we began."""
        tried_elsewhere = old.finished_at != self._tried.get(old.run_id)
        failed = old.status == "failed" and not old.interrupted
        return old.status == "done" or (failed and tried_elsewhere)

    def _start(
        self,
        run: PlannedRun,
        old: RunRecord | None,
        folder: RunFolder,
        lock: RunLock,
        allocation: Allocation,
    ) -> bool:
        """Start a run; False if it has no room yet."""
        attempts = old.attempts if old else 0
        record = self._new(run, attempts).model_copy(update={"notes": _history(old)})
        if old is not None:  # what was cut before and went on is part of the run
            kept = tuple(one for one in old.interruptions if one.has_progress)
            record = record.model_copy(update={"interruptions": kept})
        if self._launcher.queue is None:
            told = {"status": "running", "started_at": now(), "attempts": attempts + 1}
            record = record.model_copy(update=told)
        try:
            folder.write(record, durable=self._launcher.is_durable)
            if self._launcher.queue is None:
                folder.live(record.attempts).mkdir(parents=True)
            attempt = self._launcher.start(record, folder, allocation)
        except ResourcesBusy:
            _let_go(allocation, lock)
            return False
        except NotAvailable as error:
            allocation.release()
            skipped = record.model_copy(update={"status": "skipped", "reason": str(error)})
            self._end(skipped, folder, lock)
        except Exception as error:  # one run's start must not be the campaign's end
            allocation.release()
            self._end(_failed(record, f"could not be started: {one_line(error)}"), folder, lock)
        else:
            self._watch(_Own(record, folder, lock, attempt))
        return True

    def _watch(self, own: _Own) -> None:
        self._own.append(own)
        self._observer.started(own.record)

    def _collect(self) -> None:
        """Bring home every attempt of ours that has ended."""
        for own in list(self._own):
            ended = _ended(own.attempt)
            if ended is not None:
                self._own.remove(own)
                self._finalize_run(own, ended)

    def _leave_all(self) -> None:
        """Let go of the attempts that live on."""
        while self._own:
            self._own.pop().lock.release()

    def _stop_all(self, reason: str) -> None:
        """Stop every attempt, whatever fails on the way; one that has just ended counts so."""
        found = [(own, _ended(own.attempt)) for own in self._own]
        self._own = []
        for own, ended in found:
            if ended is None:
                own.attempt.stop()
        for own, before in found:
            # A launcher may have let it come to its end instead, and brought it home.
            after = before or _ended(own.attempt)
            ended = after if before or (after and after.record) else None
            stopped = _failed(own.record, reason).model_copy(update={"interrupted": True})
            if ended is None:
                self._end(stopped, own.folder, own.lock)
            else:
                self._finalize_run(own, ended)

    def _finalize_run(self, own: _Own, ended: Ended) -> None:
        if ended.record is None:
            self._end(_result(own, ended), own.folder, own.lock)
        else:  # it is in the store as it is
            own.lock.release()
            self._note(ended.record, here=True)

    def _end(self, record: RunRecord, folder: RunFolder, lock: RunLock) -> None:
        record = record.model_copy(update={"finished_at": now()})
        try:
            folder.write(record, durable=self._launcher.is_durable)
            if record.status == "done":
                folder.remove_live_files()
        except OSError as error:  # a full disk; it is told all the same, and shows as interrupted
            told = "; ".join(filter(None, [record.reason, f"not recorded: {one_line(error)}"]))
            record = _failed(record, told)
        lock.release()
        self._note(record, here=True)

    def _note(self, record: RunRecord, *, here: bool) -> None:
        self._ended[record.run_id] = record.status
        self._observer.ended(record, here=here)


def _let_go(allocation: Allocation | None, lock: RunLock | None = None) -> None:
    for one in (allocation, lock):
        if one is not None:
            one.release()


def _ended(attempt: Attempt) -> Ended | None:
    try:
        return attempt.poll()
    except Exception as error:  # a launcher's mistake fails the run, not the campaign
        attempt.stop()
        return Ended(f"could not be watched: {one_line(error)}")


def _result(own: _Own, ended: Ended) -> RunRecord:
    if ended.reason is not None:
        return _failed(own.record, ended.reason)
    try:
        record = finish(own.record, own.folder)
        return record.model_copy(update={"notes": (*record.notes, *ended.notes)})
    except Exception as error:  # one run's end must not be the campaign's
        return _failed(own.record, f"could not be finished: {one_line(error)}")


def _history(old: RunRecord | None) -> tuple[str, ...]:
    """Return how the attempts before went."""
    if old is None or not old.attempts or old.status == "skipped":
        return ()
    if old.status == "planned":  # it was given back to its launcher, and its history with it
        return old.notes
    return (*old.notes, f"attempt {old.attempts}: {old.reason or 'interrupted'}")


def _failed(record: RunRecord, reason: str) -> RunRecord:
    return record.model_copy(update={"status": "failed", "reason": reason})
