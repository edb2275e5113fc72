"""The end of what a store has under way, wherever that is."""

import time
from dataclasses import dataclass

from wattlaw.launch.slurm import commands
from wattlaw.launch.slurm.submitted import read_submitted
from wattlaw.launch.standing import jobs_of
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
    wattlaw.errors.NotAvailable
        The scheduler does not answer, or does not let this user cancel.
    """
    store.cancel()  # first, so that no campaign submits what was just cancelled
    end_s = time.monotonic() + _WAIT_S
    asked: set[str] = set()
    jobs = jobs_of(store)
    while jobs and time.monotonic() < end_s:
        new = {job.id for job in jobs.values()} - asked
        if new:
            commands.cancel(sorted(new))
            asked |= new
        time.sleep(_LOOK_S)
        jobs = jobs_of(store)
    noted, held = 0, _under_way(store)
    while held and time.monotonic() < end_s:
        noted += sum(_note(folder) for folder in held)
        held = _under_way(store)
        time.sleep(_LOOK_S if held else 0)
    return Cancelled(len(asked), noted, len(jobs) + len(held))


def _under_way(store: Store) -> list[RunFolder]:
    """Return the runs that a campaign or a job has begun and nobody has concluded."""
    return [folder for folder in store.folders() if _is_under_way(folder)]


def _is_under_way(folder: RunFolder) -> bool:
    record = folder.read()
    if record is None or record.status not in ("planned", "running"):
        return False
    return RunLock(folder).is_held() or read_submitted(folder) is not None


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
