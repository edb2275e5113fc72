"""The end of what a store has under way, wherever that is."""

import time
from collections.abc import Collection
from dataclasses import dataclass

from wattlaw.errors import WattlawError
from wattlaw.launch.queue import Queue
from wattlaw.launch.run_status import load_queues
from wattlaw.store.record import now
from wattlaw.store.run_folder import RunFolder, RunLock
from wattlaw.store.store import Store

_WAIT_S, _LOOK_S = 60.0, 1.0


@dataclass(frozen=True)
class Cancelled:
    """What was ended: jobs, and runs that are noted as interrupted; what is left all the same.

    ``troubles`` tell which load_queues could not be emptied; the runs there are as they were.
    """

    jobs: int
    runs: int
    left: int
    troubles: tuple[str, ...]


class _Ending:
    """The end of a store's jobs in one queue."""

    def __init__(self, store: Store, queue: Queue) -> None:
        self.queue, self._store = queue, store
        self.asked: set[str] = set()
        self.left = 0
        self.trouble: str | None = None

    def look(self) -> None:
        """Have all jobs end that were not told to yet, and count those that are there."""
        if self.trouble is not None:
            return
        try:
            jobs = self.queue.jobs(self._store)
            new = {job.id for job in jobs.values()} - self.asked
            if new:
                self.queue.cancel(new)
        except WattlawError as error:
            self.trouble, self.left = str(error), 0
        else:
            self.asked |= new
            self.left = len(jobs)


def cancel(store: Store) -> Cancelled:
    """End every run of a store that is under way, and have campaigns start no more.

    Raises
    ------
    wattlaw.errors.BadInput
        What a run's folder tells cannot be read; jobs and the other runs are ended all the same.
    """
    store.cancel()  # first, so that no campaign submits what was just cancelled
    end_s = time.monotonic() + _WAIT_S
    found, troubles = load_queues()
    endings = [_Ending(store, queue) for queue in found]
    while True:
        for ending in endings:
            ending.look()
        left = sum(ending.left for ending in endings)
        if not left or time.monotonic() > end_s:
            break
        time.sleep(_LOOK_S)
    emptied = [ending.queue for ending in endings if ending.trouble is None]
    noted, (held, damaged) = 0, _under_way(store, emptied)
    while held and time.monotonic() < end_s:
        noted += sum(_note(folder) for folder in held)
        held, damaged = _under_way(store, emptied)
        time.sleep(_LOOK_S if held else 0)
    if damaged:
        raise damaged[0]
    troubles += [ending.trouble for ending in endings if ending.trouble is not None]
    jobs = sum(len(ending.asked) for ending in endings)
    return Cancelled(jobs, noted, left + len(held), tuple(troubles))


def _under_way(
    store: Store, emptied: Collection[Queue]
) -> tuple[list[RunFolder], list[WattlawError]]:
    """Return the runs that a campaign or a job has begun and nobody has concluded.

    Why the others cannot be read comes second.
    """
    found: list[RunFolder] = []
    damaged: list[WattlawError] = []
    for folder in store.folders():
        try:
            found += [folder] if _is_under_way(folder, emptied) else []
        except WattlawError as error:
            damaged.append(error)
    return found, damaged


def _is_under_way(folder: RunFolder, emptied: Collection[Queue]) -> bool:
    record = folder.read()
    if record is None or record.status not in ("planned", "running"):
        return False
    return RunLock(folder).is_locked() or any(queue.was_submitted(folder) for queue in emptied)


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
