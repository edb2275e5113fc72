"""The status of the runs of a store, by records and queues, and the cancellation of active runs."""

import time
from collections.abc import Collection
from dataclasses import dataclass

from wattlaw import registry
from wattlaw.errors import WattlawError, one_line
from wattlaw.launch.choosing import NOT_NEEDED
from wattlaw.launch.finish import failed
from wattlaw.launch.launcher import GROUP, Job, Launcher, Queue
from wattlaw.store.record import RunRecord, now
from wattlaw.store.run_folder import RunFolder, RunLock
from wattlaw.store.store import Store

_TIMEOUT_S, _POLL_S = 60.0, 1.0


@dataclass(frozen=True)
class RunStatus:
    """One run: its state, its record, and its job if it is in a queue.

    A run with a missing or damaged file has the state ``damaged`` and the reason in ``damage``; it
    has no record if that is the file.
    """

    run_id: str
    state: str
    record: RunRecord | None
    job: Job | None = None
    damage: str | None = None

    @property
    def reason(self) -> str | None:
        """Return the reason of the state as a message."""
        if self.job is not None:
            why = f" ({self.job.reason})" if self.job.reason not in ("", "None") else ""
            return f"job {self.job.id}: {self.job.state}{why}"
        if self.record is None or self.damage is not None:
            return self.damage
        site = self.record.site
        if self.state == "running" and site is not None:
            return f"job {site.job_id} is not in the queue; run 'wattlaw run' to update its status"
        return self.record.reason

    @property
    def is_not_needed(self) -> bool:
        """Say whether the run stays planned because a decision does without it."""
        is_planned = self.record is not None and self.state == "planned"
        return is_planned and (self.reason or "").startswith(NOT_NEEDED)


def load_queues() -> tuple[list[Queue], list[str]]:
    """Return the queues of all launchers, and the errors of launchers that cannot be loaded."""
    queues: list[Queue] = []
    errors = []
    for name in registry.names(GROUP):
        try:
            launcher: type[Launcher] = registry.load(GROUP, name)
        except WattlawError as error:
            errors.append(str(error))
            continue
        if launcher.queue is not None:
            queues.append(launcher.queue)
    return queues, errors


def run_statuses(store: Store) -> tuple[list[RunStatus], list[str]]:
    """Return the status of each run of a store, in order of run id, and the errors of queues."""
    jobs: dict[str, Job] = {}
    queues, errors = load_queues()
    for queue in queues:  # before the records: a job that ends in between has updated its record
        try:
            jobs |= queue.jobs(store)
        except WattlawError as error:  # the records are still useful
            errors.append(str(error))
    statuses = []
    for folder in store.folders():
        job = jobs.get(folder.run_id)
        try:
            record = folder.read()
            damage, state = folder.damage(record), folder.status(record)
        except (WattlawError, OSError) as error:
            statuses.append(RunStatus(folder.run_id, "damaged", None, job, one_line(error)))
            continue
        if record is None or damage is not None:
            if damage is not None:
                statuses.append(RunStatus(folder.run_id, state, record, None, damage))
            continue
        if record.status in ("done", "failed", "skipped"):
            job = None  # the run has ended
        if job is not None:
            state = "queued" if job.is_queued else "running"
        statuses.append(RunStatus(folder.run_id, state, record, job))
    return statuses, errors


@dataclass(frozen=True)
class Cancelled:
    """How many jobs and runs were cancelled, and how many are left.

    ``errors`` are the errors of queues that could not be emptied; their runs are unchanged.
    """

    jobs: int
    runs: int
    left: int
    errors: tuple[str, ...]


def cancel(store: Store) -> Cancelled:
    """Cancel every active run of a store, and stop its campaigns.

    Raises ``BadInput`` if the record of a run is damaged, after all others are cancelled.
    """
    store.cancel()  # first, so that no campaign submits a cancelled run again
    end_s = time.monotonic() + _TIMEOUT_S
    loaded, errors = load_queues()
    queues = dict(enumerate(loaded))
    cancelled_jobs: set[tuple[int, str]] = set()  # by queue
    while True:
        left = 0
        for number, queue in list(queues.items()):
            try:
                jobs = {(number, job.id) for job in queue.jobs(store).values()}
                if new := [job_id for _, job_id in jobs - cancelled_jobs]:
                    queue.cancel(new)
            except WattlawError as error:
                errors.append(str(error))
                del queues[number]
            else:
                cancelled_jobs |= jobs
                left += len(jobs)
        if not left or time.monotonic() > end_s:
            break
        time.sleep(_POLL_S)
    cancelled, (active, damaged) = 0, _active_runs(store, queues.values())
    while active and time.monotonic() < end_s:
        cancelled += sum(_record_cancellation(folder) for folder in active)
        active, damaged = _active_runs(store, queues.values())
        time.sleep(_POLL_S if active else 0)
    if damaged:
        raise damaged[0]
    return Cancelled(len(cancelled_jobs), cancelled, left + len(active), tuple(errors))


def _active_runs(
    store: Store, emptied: Collection[Queue]
) -> tuple[list[RunFolder], list[WattlawError]]:
    """Return the runs that a campaign or a job has started and not ended, and read errors."""
    active: list[RunFolder] = []
    errors: list[WattlawError] = []
    for folder in store.folders():
        try:
            record = folder.read()
            if record is None or record.status not in ("planned", "running"):
                continue
            if RunLock(folder).is_locked() or any(q.was_submitted(folder) for q in emptied):
                active.append(folder)
        except WattlawError as error:
            errors.append(error)
    return active, errors


def _record_cancellation(folder: RunFolder) -> bool:
    """Record that a run was cancelled, unless an active campaign has its lock and does so."""
    with RunLock(folder) as lock:
        if not lock.acquire():
            return False
        record = folder.read()
        if record is None or record.status not in ("planned", "running"):
            return False
        reason = "cancelled by 'wattlaw cancel'"
        folder.write(failed(record, reason, interrupted=True, finished_at=now()))
        return True
