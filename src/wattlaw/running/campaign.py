"""The campaign: executes a plan until every run is done, failed or skipped.

It is one loop in one thread. Several campaigns may work on one store: each run has a lock, and the
kernel releases the locks of a campaign that dies.
"""

import contextlib
import signal
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, Protocol

from wattlaw.common.errors import BadInput, NotAvailable, NotPermitted, one_line
from wattlaw.common.processes import handling
from wattlaw.running.finish import failed, finalize_run, finish
from wattlaw.running.launcher import Allocation, Attempt, Ended, Launcher, ResourcesBusy
from wattlaw.store.record import RunRecord, now
from wattlaw.store.run_folder import RunFolder, RunLock
from wattlaw.store.store import Store
from wattlaw.study.model import Study
from wattlaw.study.out_of_memory import OUT_OF_MEMORY
from wattlaw.study.plan import PlannedRun
from wattlaw.study.setting import Setting

CANCELLED = "wattlaw cancel"
#: The start of the reason of a planned run that a decision does not need.
NOT_NEEDED = "not needed: "
#: The start of the note of a run that was stopped.
STOPPED_EARLY = "stopped early: "

_POLL_S = 0.05
#: Shorter than the pause after a run's end, so that two campaigns on one machine take turns.
_BUSY_POLL_S = 0.02
_OTHERS_POLL_S = 0.5
#: How often a chooser is asked whether active runs are needed to their end.
_ASK_S = 2.0


@dataclass(frozen=True)
class Outcome:
    done: int
    failed: int
    skipped: int
    left: int
    interrupted_by: str | None = None
    out_of_memory: int = 0  # runs that ended for lack of it: measurements, not failures
    not_needed: int = 0  # planned runs that a decision does without
    stopped_because: str | None = None  # why it does
    all_fail: bool = False  # the first commands failed alike: no further one started


class Observer:
    """Receives the events of a campaign; a method that is not overridden ignores its event.

    ``is_new`` says that this campaign ended the run. The campaign is waiting if others have the
    remaining runs, or the resources for them. In a study with ``decide``, the state of the decision
    follows each run.
    """

    def started(self, record: RunRecord) -> None: ...

    def ended(self, record: RunRecord, *, is_new: bool) -> None: ...

    def waiting(self, runs: int) -> None: ...

    def note(self, message: str) -> None: ...

    def decided(self, message: str) -> None: ...


class Choice(NamedTuple):
    runs: Sequence[PlannedRun]
    message: str
    stopped_because: str | None = None  # set once no further run is needed


class Chooser(Protocol):
    def choose(self, pending: Sequence[PlannedRun], active: Sequence[PlannedRun]) -> Choice:
        """Return the runs to start beside the active ones, each of which is pending."""

    def stop_reason(self, run_id: str) -> str | None:
        """Return why an active run is not needed to its end, or None."""


@dataclass
class _ActiveRun:
    record: RunRecord
    folder: RunFolder
    lock: RunLock
    attempt: Attempt


@dataclass
class Campaign:
    _study: Study
    _plan: Sequence[PlannedRun]
    _store: Store
    _launcher: Launcher
    _observers: Sequence[Observer] = ()
    _git_commit: str | None = None
    #: What chooses the next runs; without it, they start in the plan's order.
    _chooser: Chooser | None = None
    #: The runs that have not ended, by run id.
    _pending: dict[str, PlannedRun] = field(default_factory=dict)
    _active: dict[str, _ActiveRun] = field(default_factory=dict)
    _states: dict[str, str] = field(default_factory=dict)  # of the runs that ended
    #: When each run had finished before this campaign began.
    _finished_before: dict[str, datetime | None] = field(default_factory=dict)
    _chosen: set[str] = field(default_factory=set)  # run ids
    #: How many runs had ended at the last choice.
    _ended_at_choice: int = -1
    _last_message: str | None = None
    _stopped_by: str | None = None  # a signal, or the command that cancels
    _stopped_because: str | None = None
    _not_needed: int = 0
    #: The settings of the commands that failed, by the reason.
    _failed_alike: dict[str, set[Setting]] = field(default_factory=dict)
    _asked_s: float = 0.0  # when the chooser was last asked whether active runs are needed

    def run(self) -> Outcome:
        """Execute the plan to its end, or until SIGINT, SIGTERM, SIGHUP or ``wattlaw cancel``.

        A run that failed before this campaign began is tried again, once. A run that any campaign
        has tried since then is not.
        """
        self._store.remove_abandoned()
        self._pending = {run.run_id: run for run in self._plan}
        self._write_plan()
        cancelled_before = self._store.cancelled_at()

        def stop(number: int, _: object) -> None:
            self._stopped_by = signal.Signals(number).name

        signals = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # under nohup it stays ignored
            signals.append(signal.SIGHUP)
        with handling(signals, stop):
            try:
                self._execute(cancelled_before)
            finally:
                if self._launcher.queue is not None and self._stopped_by != CANCELLED:
                    while self._active:  # the attempts continue without this campaign
                        self._active.popitem()[1].lock.release()
                self._stop_all(f"interrupted by {self._stopped_by or 'an error of the launcher'}")
        count = Counter(self._states.values())
        ended = sum(count[state] for state in ("done", "failed", OUT_OF_MEMORY, "skipped"))
        left = len(self._plan) - ended - self._not_needed
        # A request to stop after the last run, or after the decision, interrupts nothing.
        is_over = left == 0 and (self._chooser is None or self._stopped_because is not None)
        return Outcome(
            done=count["done"],
            failed=count["failed"],
            skipped=count["skipped"],
            out_of_memory=count[OUT_OF_MEMORY],
            left=left,
            interrupted_by=None if is_over else self._stopped_by,
            not_needed=self._not_needed,
            stopped_because=self._stopped_because,
            all_fail=left > 0 and self._all_fail,
        )

    def _write_plan(self) -> None:
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
            if _is_measured(record):
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

    def _execute(self, cancelled_before: str | None) -> None:
        # First, so that progress and the time to go are of runs that start.
        for run in list(self._pending.values()):
            if self._stopped_by is not None:
                break
            if (reason := self._launcher.unsupported_reason(run.spec)) is not None:
                self._advance(run, reason)
        while (self._pending or self._active) and self._stopped_by is None:
            detached = self._launcher.detached_run_ids()  # active without a campaign
            for run in [self._pending[run_id] for run_id in self._pending if run_id in detached]:
                self._advance(run)
            chosen = () if self._all_fail else self._choose()
            if (self._all_fail or self._chooser is not None) and not (chosen or self._active):
                break
            is_busy = self._start_until_busy(chosen)
            if self._stopped_by is not None:
                break
            self._tell()
            if self._active:
                self._poll_active()
                time.sleep(_POLL_S)
            elif self._pending:
                time.sleep(_BUSY_POLL_S if is_busy else _OTHERS_POLL_S)
            if self._store.was_cancelled_since(cancelled_before):
                self._stopped_by = self._stopped_by or CANCELLED
        is_over = self._stopped_by is None and not self._all_fail
        if self._chooser is not None and (self._stopped_because or is_over):
            self._choose()
            self._mark_not_needed()

    def _tell(self) -> None:
        message = self._launcher.status_message()
        for observer in self._observers:
            if message and message != self._last_message:
                observer.note(message)
            elif self._pending and not self._active and not message:
                observer.waiting(len(self._pending))
        self._last_message = message

    def _choose(self) -> Sequence[PlannedRun]:
        """Return the pending runs to start; choose at the beginning and when runs have ended."""
        pending = list(self._pending.values())
        if self._chooser is None:
            return pending
        if self._ended_at_choice != len(self._states):
            self._ended_at_choice = len(self._states)
            started = self._chosen.union(self._active).difference(self._states)
            choice = self._chooser.choose(
                [run for run in pending if run.run_id not in self._chosen],
                [run for run in self._plan if run.run_id in started],
            )
            self._chosen |= {run.run_id for run in choice.runs}
            self._stopped_because = choice.stopped_because
            for observer in self._observers:
                observer.decided(choice.message)
        return [run for run in pending if run.run_id in self._chosen]

    def _start_until_busy(self, runs: Sequence[PlannedRun]) -> bool:
        most = self._launcher.most_active
        for run in runs:
            allocation = None
            unsupported = self._launcher.unsupported_reason(run.spec)
            if unsupported is None:
                is_full = most is not None and len(self._active) >= most
                allocation = None if is_full else self._launcher.allocate(run.spec)
                if allocation is None:
                    return True
            if self._stopped_by is not None:
                if allocation is not None:
                    allocation.release()
                return False
            self._advance(run, unsupported, allocation)
        return False

    def _advance(
        self, run: PlannedRun, unsupported: str | None = None, allocation: Allocation | None = None
    ) -> None:
        """Report, watch, start or skip a run; it stays pending if others have it."""
        folder = self._store.folder(run.run_id)
        lock = RunLock(folder)
        with contextlib.ExitStack() as held:
            if allocation is not None:
                held.callback(allocation.release)
            try:
                if not lock.acquire():
                    return
                held.callback(lock.release)
                old = _read(folder)
                if old is not None and self._has_ended(old):
                    self._report_end(old, is_new=False)
                    return
                attempt = None if old is None else self._launcher.reattach(old, folder)
            except (BadInput, NotPermitted) as error:
                self._report_end(failed(self._new(run), str(error)), is_new=True)
                return
            if old is not None and attempt is not None:
                held.pop_all()
                if allocation is not None:
                    allocation.release()
                self._watch(_ActiveRun(old, folder, lock, attempt))
            elif allocation is not None:
                held.pop_all()
                self._start(run, old, folder, lock, allocation)
            elif unsupported is not None:
                record = self._new(run, old.attempts if old else 0)
                self._end(failed(record, unsupported, "skipped"), folder, lock)

    def _has_ended(self, record: RunRecord) -> bool:
        """Say whether a run is done or does not fit, or has failed on its own since the campaign
        began."""
        tried_elsewhere = record.finished_at != self._finished_before.get(record.run_id)
        has_failed = record.status == "failed" and record.state != "interrupted"
        return _is_measured(record) or (has_failed and tried_elsewhere)

    def _start(
        self,
        run: PlannedRun,
        old: RunRecord | None,
        folder: RunFolder,
        lock: RunLock,
        allocation: Allocation,
    ) -> None:
        attempts, changes = 0, dict[str, object]()
        if old is not None:
            attempts = old.attempts
            kept = ("notes", "interruptions", "started_at")  # of a run whose job was lost
            if attempts and old.status == "planned":
                changes = {name: getattr(old, name) for name in kept}
            else:
                # The run continues from the checkpoints of these attempts.
                cuts = old.interruptions
                changes["interruptions"] = tuple(cut for cut in cuts if cut.has_progress)
                if attempts and old.status != "skipped":
                    ended = f"attempt {attempts}: {old.reason or 'interrupted'}"
                    changes["notes"] = (*old.notes, ended)
        if self._launcher.queue is None:
            changes |= {"status": "running", "started_at": now(), "attempts": attempts + 1}
        record = self._new(run, attempts).model_copy(update=changes)
        try:
            folder.write(record, durable=self._launcher.is_durable)
            if self._launcher.queue is None:
                folder.live(record.attempts).mkdir(parents=True)
            attempt = self._launcher.start(record, folder, allocation)
        except ResourcesBusy:
            allocation.release()
            lock.release()
        except NotAvailable as error:
            allocation.release()
            self._end(failed(record, str(error), "skipped"), folder, lock)
        except Exception as error:  # one run must not end the campaign
            allocation.release()
            self._end(failed(record, f"could not be started: {one_line(error)}"), folder, lock)
        else:
            self._watch(_ActiveRun(record, folder, lock, attempt))

    def _watch(self, run: _ActiveRun) -> None:
        del self._pending[run.record.run_id]
        self._active[run.record.run_id] = run
        for observer in self._observers:
            observer.started(run.record)

    def _poll_active(self) -> None:
        for run in list(self._active.values()):
            if (ended := _poll(run.attempt)) is not None:
                self._finish(run, ended)
        if self._chooser is None or time.monotonic() < self._asked_s + _ASK_S:
            return
        self._asked_s = time.monotonic()
        for run_id, run in list(self._active.items()):
            if reason := self._chooser.stop_reason(run_id):
                run.attempt.stop()
                self._end(_ended_early(run, reason), run.folder, run.lock)

    def _stop_all(self, reason: str) -> None:
        for run in list(self._active.values()):
            ended = _poll(run.attempt)
            if ended is None:
                run.attempt.stop()
                # The launcher may have waited for the attempt's end and written its record.
                if (stopped := _poll(run.attempt)) is not None and stopped.record is not None:
                    ended = stopped
            if ended is not None:
                self._finish(run, ended)
            else:
                self._end(failed(run.record, reason, interrupted=True), run.folder, run.lock)

    def _finish(self, run: _ActiveRun, ended: Ended) -> None:
        if ended.record is not None:  # the launcher has stored it
            run.lock.release()
            if ended.record.status == "planned":  # its job was lost
                run_id = ended.record.run_id
                del self._active[run_id]
                self._pending[run_id] = next(one for one in self._plan if one.run_id == run_id)
            else:
                self._report_end(ended.record, is_new=True)
            return
        record = finish(run.record, run.folder, ended.reason)
        record = record.model_copy(update={"notes": (*record.notes, *ended.notes)})
        self._end(record, run.folder, run.lock)

    def _end(self, record: RunRecord, folder: RunFolder, lock: RunLock) -> None:
        record = record.model_copy(update={"finished_at": now()})
        try:
            folder.write(record, durable=self._launcher.is_durable)
            if _is_measured(record):
                folder.remove_live_files()
        except OSError as error:  # a full disk: the run is reported, and its record is unfinished
            reasons = [record.reason, f"not recorded: {one_line(error)}"]
            record = failed(record, "; ".join(filter(None, reasons)))
        lock.release()
        self._report_end(record, is_new=True)

    def _report_end(self, record: RunRecord, *, is_new: bool) -> None:
        self._pending.pop(record.run_id, None)
        self._active.pop(record.run_id, None)
        self._states[record.run_id] = record.state
        reason = (record.reason or "").replace(record.run_id, "")
        is_of_command = record.spec.workload.command is not None and "exit code" in reason
        if is_new and is_of_command and record.state == "failed":
            self._failed_alike.setdefault(reason, set()).add(record.spec.setting)
        for observer in self._observers:
            observer.ended(record, is_new=is_new)

    @property
    def _all_fail(self) -> bool:
        """Whether every run so far failed alike, in two settings if there are two: the next ones
        would, too. A repeated campaign tries all: only these settings may fail."""
        if len(self._failed_alike) != 1 or len(self._study.workloads) != 1:
            return False
        (settings,) = self._failed_alike.values()
        return (
            1 < len(self._states) == list(self._states.values()).count("failed")
            and len(settings) >= min(2, len({run.spec.setting for run in self._plan}))
            and not any(self._finished_before.values())
        )

    def _mark_not_needed(self) -> None:
        self._not_needed = len(self._pending)
        changes = {"reason": f"{NOT_NEEDED}{self._stopped_because}"}
        for planned in self._pending.values():
            folder = self._store.folder(planned.run_id)
            # A damaged record is no reason to end without the decision; status names it.
            with contextlib.suppress(BadInput, NotPermitted), RunLock(folder) as lock:
                record = folder.read() if lock.acquire() else None
                if record is not None and record.status == "planned":
                    folder.write(record.model_copy(update=changes), durable=False)


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


def _is_measured(record: RunRecord) -> bool:
    """Say whether a run has its result, so that another attempt would show the same. How much
    memory a host has left depends on its job and on others: that is tried again."""
    return record.status == "done" or record.out_of_memory == "device"


def _ended_early(run: _ActiveRun, reason: str) -> RunRecord:
    reason = f"{STOPPED_EARLY}{reason}"
    try:
        record = run.folder.read() or run.record  # a job writes it
        if record.status == "done":
            return record
        changes = {"notes": (*record.notes, reason), "interrupted": False}
        return finalize_run(record.model_copy(update=changes), run.folder)
    except Exception as error:  # one run must not end the campaign
        return failed(run.record, f"{reason}; not usable: {one_line(error)}")
