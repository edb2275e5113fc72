"""Cancellation of all active runs of a store, in this machine's campaigns and in queues."""

import time
from collections.abc import Collection
from dataclasses import dataclass

from wattlaw.errors import WattlawError
from wattlaw.launch.queue import Queue
from wattlaw.launch.run_status import load_queues
from wattlaw.store.record import now
from wattlaw.store.run_folder import RunFolder, RunLock
from wattlaw.store.store import Store

_TIMEOUT_S, _POLL_S = 60.0, 1.0


@dataclass(frozen=True)
class Cancelled:
    """How many jobs and runs were cancelled, and how many are left.

    ``troubles`` are the errors of queues that could not be emptied; their runs are unchanged.
    """

    jobs: int
    runs: int
    left: int
    troubles: tuple[str, ...]


class _QueueCancellation:
    """The cancellation of a store's jobs in one queue."""

    def __init__(self, store: Store, queue: Queue) -> None:
        self.queue, self._store = queue, store
        self.cancelled: set[str] = set()
        self.left = 0
        self.error: str | None = None

    def poll(self) -> None:
        """Cancel all new jobs, and count the jobs that are left."""
        if self.error is not None:
            return
        try:
            jobs = self.queue.jobs(self._store)
            new = {job.id for job in jobs.values()} - self.cancelled
            if new:
                self.queue.cancel(new)
        except WattlawError as error:
            self.error, self.left = str(error), 0
        else:
            self.cancelled |= new
            self.left = len(jobs)


def cancel(store: Store) -> Cancelled:
    """Cancel every active run of a store, and stop its campaigns.

    Raises
    ------
    wattlaw.errors.BadInput
        The record of a run is damaged; jobs and the other runs are cancelled first.
    """
    store.cancel()  # first, so that no campaign submits a cancelled run again
    end_s = time.monotonic() + _TIMEOUT_S
    queues, troubles = load_queues()
    cancellations = [_QueueCancellation(store, queue) for queue in queues]
    while True:
        for cancellation in cancellations:
            cancellation.poll()
        left = sum(cancellation.left for cancellation in cancellations)
        if not left or time.monotonic() > end_s:
            break
        time.sleep(_POLL_S)
    emptied = [each.queue for each in cancellations if each.error is None]
    cancelled, (active, damaged) = 0, _active_runs(store, emptied)
    while active and time.monotonic() < end_s:
        cancelled += sum(_record_cancellation(folder) for folder in active)
        active, damaged = _active_runs(store, emptied)
        time.sleep(_POLL_S if active else 0)
    if damaged:
        raise damaged[0]
    troubles += [each.error for each in cancellations if each.error is not None]
    jobs = sum(len(each.cancelled) for each in cancellations)
    return Cancelled(jobs, cancelled, left + len(active), tuple(troubles))


def _active_runs(
    store: Store, emptied: Collection[Queue]
) -> tuple[list[RunFolder], list[WattlawError]]:
    """Return the runs that a campaign or a job has started and not ended, and read errors."""
    active: list[RunFolder] = []
    errors: list[WattlawError] = []
    for folder in store.folders():
        try:
            active += [folder] if _is_active(folder, emptied) else []
        except WattlawError as error:
            errors.append(error)
    return active, errors


def _is_active(folder: RunFolder, emptied: Collection[Queue]) -> bool:
    record = folder.read()
    if record is None or record.status not in ("planned", "running"):
        return False
    return RunLock(folder).is_locked() or any(queue.was_submitted(folder) for queue in emptied)


def _record_cancellation(folder: RunFolder) -> bool:
    """Record that a run was cancelled, unless an active campaign has its lock and does so."""
    with RunLock(folder) as lock:
        if not lock.acquire():
            return False
        record = folder.read()
        if record is None or record.status not in ("planned", "running"):
            return False
        reason = "cancelled by 'wattlaw cancel'"
        changes = {"status": "failed", "reason": reason, "interrupted": True, "finished_at": now()}
        folder.write(record.model_copy(update=changes))
        return True
