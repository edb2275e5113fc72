"""The campaign: executes a plan until every run is done, failed or skipped.

It is one loop in one thread. Several campaigns may work on one store: each run has a lock, and the
kernel releases the locks of a campaign that dies.
"""

import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Self

from wattlaw.common.errors import BadInput, NotAvailable, NotPermitted, one_line
from wattlaw.running.choosing import Selection
from wattlaw.running.early_stop import end_early
from wattlaw.running.finish import failed, finish
from wattlaw.running.launcher import Allocation, Attempt, Ended, Launcher, ResourcesBusy
from wattlaw.running.stop import CANCELLED, Stop, stopping
from wattlaw.store.record import RunRecord, now
from wattlaw.store.run_folder import RunFolder, RunLock
from wattlaw.store.store import Store
from wattlaw.study.model import Study
from wattlaw.study.not_as_declared import batch_texts, uncooperative_text
from wattlaw.study.plan import PlannedRun

_POLL_S = 0.05
#: Shorter than the pause after a run's end, so that two campaigns on one machine take turns.
_BUSY_POLL_S = 0.02
_OTHERS_POLL_S = 0.5


@dataclass(frozen=True)
class Outcome:
    """How many runs of the plan have each status, and what interrupted the campaign."""

    done: int
    failed: int
    skipped: int
    left: int
    interrupted_by: str | None = None
    warnings: tuple[str, ...] = ()
    not_needed: int = 0  # planned runs that a decision does without
    stopped_because: str | None = None  # why it does


class Observer:
    """Receives the events of a campaign; a method that is not overridden ignores its event."""

    def started(self, record: RunRecord) -> None:
        """Handle the start of a run."""

    def ended(self, record: RunRecord, *, is_new: bool) -> None:
        """Handle a run that is done, failed or skipped; ``is_new`` if this campaign ended it."""

    def waiting(self, runs: int) -> None:
        """Handle a wait: other campaigns have the remaining runs, or the resources for them."""

    def note(self, message: str) -> None:
        """Handle a status message of the launcher."""

    def decided(self, message: str) -> None:
        """Handle the state of the decision after a run, in a study with ``decide``."""

    def over(self, outcome: Outcome) -> None:
        """Handle the end of the campaign."""


class Receiver(Observer):
    """An observer that works in a thread of its own, from entering it to its exit."""

    warnings: tuple[str, ...] = ()  # what failed in it

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(self, *_: object) -> None:
        """Handle what is left, and end the thread."""


@dataclass
class _ActiveRun:
    """A run that this campaign has started or reattached."""

    record: RunRecord
    folder: RunFolder
    lock: RunLock
    attempt: Attempt


@dataclass
class Campaign:
    """Executes one plan on one store with one launcher."""

    _study: Study
    _plan: Sequence[PlannedRun]
    _store: Store
    _launcher: Launcher
    _observers: Sequence[Observer]
    _git_commit: str | None = None
    #: What selects the next runs; without it, they start in the plan's order.
    _selection: Selection | None = None
    _ended: dict[str, str] = field(default_factory=dict)
    _active: list[_ActiveRun] = field(default_factory=list)
    #: The workload of each run that ended and whose workers each trained a model of their own.
    _uncooperative: list[str] = field(default_factory=list)
    #: The rows of runs that ended and trained with another batch than that of their setting.
    _other_batches: list[dict[str, object]] = field(default_factory=list)
    #: When each run had finished before this campaign began.
    _finished_before: dict[str, datetime | None] = field(default_factory=dict)
    _last_message: str | None = None

    def run(self) -> Outcome:
        """Execute the plan to its end, or until SIGINT, SIGTERM, SIGHUP or ``wattlaw cancel``.

        A run that failed before this campaign began is tried again, once. A run that any campaign
        has tried since then is not.
        """
        self._store.remove_abandoned()
        self._write_plan()
        with stopping(self._store) as stop:
            try:
                self._execute(stop)
            finally:
                if self._launcher.queue is not None and stop.by != CANCELLED:
                    while self._active:  # the attempts continue without this campaign
                        self._active.pop().lock.release()
                self._stop_all(f"interrupted by {stop.by or 'an error of the launcher'}")
        count = Counter(self._ended.values())
        ended = count["done"] + count["failed"] + count["skipped"]
        not_needed = self._selection.not_needed if self._selection else 0
        left = len(self._plan) - ended - not_needed
        stopped_because = self._selection.stopped_because if self._selection else None
        # A request to stop after the last run, or after the decision, interrupts nothing.
        is_over = left == 0 and (self._selection is None or stopped_because is not None)
        alone = self._uncooperative
        warnings = [uncooperative_text(len(alone), set(alone))] if alone else []
        outcome = Outcome(
            done=count["done"],
            failed=count["failed"],
            skipped=count["skipped"],
            left=left,
            interrupted_by=None if is_over else stop.by,
            warnings=(*warnings, *batch_texts(self._other_batches)),
            not_needed=not_needed,
            stopped_because=stopped_because,
        )
        for observer in self._observers:
            observer.over(outcome)
        return outcome

    def _write_plan(self) -> None:
        """Record every new run as planned, and report the runs that are already done."""
        for planned in self._plan:
            folder = self._store.folder(planned.run_id)
            try:
                record = _read(folder)
                if record is None:
                    with RunLock(folder) as lock:
                        if lock.acquire() and folder.read() is None:
                            folder.write(self._new(planned), durable=False)
                    continue
            except (BadInput, NotPermitted) as error:
                self._report_end(failed(self._new(planned), str(error)), is_new=True)
                continue
            self._finished_before[planned.run_id] = record.finished_at
            if record.status == "done":
                folder.remove_stale_live_files()
                self._report_end(record, is_new=False)

    def _new(self, planned: PlannedRun, attempts: int = 0) -> RunRecord:
        return RunRecord(
            run_id=planned.run_id,
            study=self._study.name,
            spec=planned.spec,
            seed=planned.spec.train.seed + planned.spec.repeat,
            order_seed=self._study.order_seed,
            attempts=attempts,
            git_commit=self._git_commit,
        )

    def _execute(self, stop: Stop) -> None:
        pending = [run for run in self._plan if run.run_id not in self._ended]
        pending = self._skip_unsupported(pending, stop)
        while (pending or self._active) and stop.by is None:
            detached = self._launcher.detached_run_ids()  # active without a campaign
            pending = [
                run
                for run in pending
                if run.run_id not in detached or not self._advance(run, None, None)
            ]
            chosen, others = self._select(pending)
            if self._selection is not None and not chosen and not self._active:
                break
            chosen, is_busy = self._start_pending(chosen, stop)
            pending = chosen + others
            if stop.by is not None:
                break
            message = self._launcher.status_message()
            for observer in self._observers:
                if message and message != self._last_message:
                    observer.note(message)
                elif pending and not self._active and not message:
                    observer.waiting(len(pending))
            self._last_message = message
            if self._active:
                for run in list(self._active):
                    ended = _poll(run.attempt)
                    if ended is not None:
                        self._active.remove(run)
                        self._finalize_run(run, ended)
                self._stop_early()
                time.sleep(_POLL_S)
            elif pending:
                time.sleep(_BUSY_POLL_S if is_busy else _OTHERS_POLL_S)
            stop.poll()
        is_decided = self._selection is not None and self._selection.stopped_because is not None
        if self._selection is not None and (is_decided or stop.by is None):
            self._select(pending)
            self._selection.mark_not_needed(pending)

    def _select(self, pending: list[PlannedRun]) -> tuple[list[PlannedRun], list[PlannedRun]]:
        if self._selection is None:
            return pending, []
        active = {run.record.run_id for run in self._active}
        if (message := self._selection.choose(pending, active, self._ended)) is not None:
            for observer in self._observers:
                observer.decided(message)
        chosen = self._selection.chosen
        return (
            [run for run in pending if run.run_id in chosen],
            [run for run in pending if run.run_id not in chosen],
        )

    def _skip_unsupported(self, pending: list[PlannedRun], stop: Stop) -> list[PlannedRun]:
        """Skip the runs that the launcher can never execute; return the others.

        This is done first, so that progress and the time to go are of runs that start.
        """
        remaining: list[PlannedRun] = []
        for index, run in enumerate(pending):
            if stop.by is not None:
                return remaining + pending[index:]
            reason = self._launcher.unsupported_reason(run.spec)
            if reason is None or not self._advance(run, reason, None):
                remaining.append(run)
        return remaining

    def _start_pending(
        self, pending: list[PlannedRun], stop: Stop
    ) -> tuple[list[PlannedRun], bool]:
        """Start runs until resources are busy; return the pending ones, and whether that is why."""
        remaining: list[PlannedRun] = []
        most = self._launcher.most_active
        for index, run in enumerate(pending):
            unsupported, allocation, is_busy = (
                self._launcher.unsupported_reason(run.spec),
                None,
                False,
            )
            if unsupported is None:
                is_full = most is not None and len(self._active) >= most
                allocation = None if is_full else self._launcher.allocate(run.spec)
                is_busy = allocation is None
            if is_busy or stop.by is not None:
                _release(allocation)
                return remaining + pending[index:], is_busy
            if not self._advance(run, unsupported, allocation):
                remaining.append(run)
        return remaining, False

    def _advance(
        self, run: PlannedRun, unsupported: str | None, allocation: Allocation | None
    ) -> bool:
        """Watch, start, skip or report a run; False if its lock or its resources are not free."""
        folder = self._store.folder(run.run_id)
        lock = RunLock(folder)
        try:
            if not lock.acquire():
                _release(allocation)
                return False
            old, attempt, is_damaged, is_over = _read(folder), None, False, False
            if old is not None:
                # It is done, or has failed on its own since the campaign began.
                tried_elsewhere = old.finished_at != self._finished_before.get(run.run_id)
                is_over = old.status == "done" or (old.state == "failed" and tried_elsewhere)
                attempt = None if is_over else self._launcher.reattach(old, folder)
        except (BadInput, NotPermitted) as error:
            old, is_over, is_damaged = failed(self._new(run), str(error)), True, True
        if old is not None and is_over:
            _release(allocation, lock)
            self._report_end(old, is_new=is_damaged)
            return True
        if old is not None and attempt is not None:
            _release(allocation)
            self._watch(_ActiveRun(old, folder, lock, attempt))
            return True
        if allocation is not None:
            return self._start(run, old, folder, lock, allocation)
        if unsupported is not None:
            record = self._new(run, old.attempts if old else 0)
            self._end(failed(record, unsupported, "skipped"), folder, lock)
            return True
        lock.release()
        return False

    def _start(
        self,
        run: PlannedRun,
        old: RunRecord | None,
        folder: RunFolder,
        lock: RunLock,
        allocation: Allocation,
    ) -> bool:
        """Start a run; return False if the resources are busy."""
        attempts = old.attempts if old else 0
        changes: dict[str, object] = {}
        if old is not None:
            # The run continues from the checkpoints of these attempts.
            changes["interruptions"] = tuple(cut for cut in old.interruptions if cut.has_progress)
        if old is not None and attempts and old.status != "skipped":
            ended = f"attempt {attempts}: {old.reason or 'interrupted'}"
            # A planned run was requeued with its notes.
            changes["notes"] = old.notes if old.status == "planned" else (*old.notes, ended)
        if self._launcher.queue is None:
            changes |= {"status": "running", "started_at": now(), "attempts": attempts + 1}
        record = self._new(run, attempts).model_copy(update=changes)
        try:
            folder.write(record, durable=self._launcher.is_durable)
            if self._launcher.queue is None:
                folder.live(record.attempts).mkdir(parents=True)
            attempt = self._launcher.start(record, folder, allocation)
        except ResourcesBusy:
            _release(allocation, lock)
            return False
        except NotAvailable as error:
            allocation.release()
            self._end(failed(record, str(error), "skipped"), folder, lock)
        except Exception as error:  # one run must not end the campaign
            allocation.release()
            self._end(failed(record, f"could not be started: {one_line(error)}"), folder, lock)
        else:
            self._watch(_ActiveRun(record, folder, lock, attempt))
        return True

    def _watch(self, run: _ActiveRun) -> None:
        self._active.append(run)
        for observer in self._observers:
            observer.started(run.record)

    def _stop_all(self, reason: str) -> None:
        polled = [(run, _poll(run.attempt)) for run in self._active]
        self._active = []
        for run, ended in polled:
            if ended is None:
                run.attempt.stop()
        for run, ended_before in polled:
            # The launcher may have waited for the attempt's end and written its record.
            ended = ended_before or _poll(run.attempt)
            if ended is not None and (ended_before or ended.record):
                self._finalize_run(run, ended)
            else:
                self._end(failed(run.record, reason, interrupted=True), run.folder, run.lock)

    def _stop_early(self) -> None:
        """Stop the runs that a decision does not need to their end; keep what they measured."""
        if self._selection is None:
            return
        reasons = self._selection.stop_early([run.folder for run in self._active])
        for run in [run for run in self._active if run.record.run_id in reasons]:
            self._active.remove(run)
            run.attempt.stop()
            record = end_early(run.record, run.folder, reasons[run.record.run_id])
            self._end(record, run.folder, run.lock)

    def _finalize_run(self, run: _ActiveRun, ended: Ended) -> None:
        if ended.record is not None:  # the launcher has stored it
            run.lock.release()
            self._report_end(ended.record, is_new=True)
            return
        if ended.reason is not None:
            record = failed(run.record, ended.reason)
        else:
            try:
                record = finish(run.record, run.folder)
                record = record.model_copy(update={"notes": (*record.notes, *ended.notes)})
            except Exception as error:  # one run must not end the campaign
                record = failed(run.record, f"could not be finished: {one_line(error)}")
        self._end(record, run.folder, run.lock)

    def _end(self, record: RunRecord, folder: RunFolder, lock: RunLock) -> None:
        record = record.model_copy(update={"finished_at": now()})
        try:
            folder.write(record, durable=self._launcher.is_durable)
            if record.status == "done":
                folder.remove_live_files()
        except OSError as error:  # a full disk: the run is reported, and its record is unfinished
            reasons = [record.reason, f"not recorded: {one_line(error)}"]
            record = failed(record, "; ".join(filter(None, reasons)))
        lock.release()
        self._report_end(record, is_new=True)

    def _report_end(self, record: RunRecord, *, is_new: bool) -> None:
        self._ended[record.run_id] = record.state
        if record.facts.workers_cooperate is False and record.spec.setting.gpus > 1:
            self._uncooperative.append(record.spec.workload.name)
        if record.facts.global_batch is not None:
            spec = record.spec
            self._other_batches.append(
                {
                    "workload": spec.workload.name,
                    "launcher": spec.launch_kind,
                    "gpus": spec.setting.gpus,
                    "global_batch": record.facts.global_batch,
                    "global_batch_declared": spec.setting.global_batch,
                }
            )
        for observer in self._observers:
            observer.ended(record, is_new=is_new)


def _release(allocation: Allocation | None, lock: RunLock | None = None) -> None:
    for resource in (allocation, lock):
        if resource is not None:
            resource.release()


def _poll(attempt: Attempt) -> Ended | None:
    try:
        return attempt.poll()
    except Exception as error:  # an error of the launcher fails the run, not the campaign
        attempt.stop()
        return Ended(f"could not be watched: {one_line(error)}")


def _read(folder: RunFolder) -> RunRecord | None:
    """Return the record of a run; one that is done and lacks a table is to be repeated."""
    record = folder.read()
    if record is not None and (damage := folder.damage(record)) is not None:
        return failed(record, damage, interrupted=True)
    return record
