"""The end of what a store has under way, wherever that is."""

import time
from collections.abc import Collection
from dataclasses import dataclass

from wattlaw.launch.queue import Queue
from wattlaw.launch.standing import queues_of
from wattlaw.store.record import now
from wattlaw.store.run_folder import RunFolder, RunLock
from wattlaw.store.store import Store

_WAIT_S, _LOOK_S = 60.0, 1.0


@dataclass(frozen=True)
class Cancelled:
    """What was ended: jobs, and runs that are noted as interrupted; what is left all the same."""

    jobs: int
    runs: int
    left: int


def cancel(store: Store) -> Cancelled:
    """End every run of a store that is under way, and have campaigns start no more.

    Raises
    ------
    wattlaw.errors.WattlawError
        A scheduler does not answer, or does not let this user cancel.
    """
    store.cancel()  # first, so that no campaign submits what was just cancelled
    end_s = time.monotonic() + _WAIT_S
    queues = queues_of(store.records())
    jobs = left = 0
    for queue in queues:
        asked, still = _end_jobs(store, queue, end_s)
        jobs, left = jobs + asked, left + still
    noted, held = 0, _under_way(store, queues)
    while held and time.monotonic() < end_s:
        noted += sum(_note(folder) for folder in held)
        held = _under_way(store, queues)
        time.sleep(_LOOK_S if held else 0)
    return Cancelled(jobs, noted, left + len(held))


def _end_jobs(store: Store, queue: Queue, end_s: float) -> tuple[int, int]:
    """End the jobs of a queue; return how many there were, and how many are left."""
    asked: set[str] = set()
    jobs = queue.jobs(store)
    while jobs and time.monotonic() < end_s:
        new = {job.id for job in jobs.values()} - asked
        if new:
            queue.cancel(new)
            asked |= new
        time.sleep(_LOOK_S)
        jobs = queue.jobs(store)
    return len(asked), len(jobs)


def _under_way(store: Store, queues: Collection[Queue]) -> list[RunFolder]:
    """Return the runs that a campaign or a job has begun and nobody has concluded."""
    return [folder for folder in store.folders() if _is_under_way(folder, queues)]


def _is_under_way(folder: RunFolder, queues: Collection[Queue]) -> bool:
    record = folder.read()
    if record is None or record.status not in ("planned", "running"):
        return False
    return RunLock(folder).is_held() or any(queue.has(folder) for queue in queues)


def _note(folder: RunFolder) -> bool:
    """Note that a run was cancelled, unless a campaign that still lives has it: that notes it."""
    with RunLock(folder) as lock:
        if not lock.acquire():
            return False
        record = folder.read()
        if record is None or record.status not in ("planned", "running"):
            return False
        told = {"status": "failed", "reason": "cancelled by 'wattlaw cancel'", "interrupted": True}
        folder.write(record.model_copy(update=told | {"finished_at": now()}))
        return True
