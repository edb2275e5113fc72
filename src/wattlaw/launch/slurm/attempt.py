"""One run in the hands of Slurm, seen from outside: its job, or the next one after a loss."""

import signal
import time
from collections.abc import Callable

from wattlaw.errors import NotAvailable, WattlawError, one_line
from wattlaw.files import read_end
from wattlaw.launch.launcher import Ended, ResourcesBusy
from wattlaw.launch.slurm import commands
from wattlaw.launch.slurm.codes import INTERRUPTED, REASONS
from wattlaw.launch.slurm.commands import Job, Unreachable
from wattlaw.launch.slurm.interruption import has_progress, interrupted
from wattlaw.launch.slurm.poller import QueuePoller
from wattlaw.store.record import RunRecord, now
from wattlaw.store.run_folder import RunFolder

_GONE_S, _LOOK_S = 60.0, 1.0
#: States in which something else than the run has ended a job.
_LOST = {"NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "REVOKED"}
_TIMES_UP = ("TIMEOUT", "DEADLINE")
_WHYS = {
    "TIMEOUT": "reached its time limit before a checkpoint was made; give it more "
    "(launch.slurm.time), or more warning (warn_s)",
    "OUT_OF_MEMORY": "ran out of its nodes' memory; ask for more (launch.slurm.options: mem)",
}
_CANCELLED = "cancelled by 'wattlaw cancel'"
_LAST_LINES, _LONGEST = 50, 200
_OVER = ("done", "failed", "skipped")


class SlurmAttempt:
    """A run whose job is in the queue, runs, or has ended.

    The job itself writes the run's record. Here is only concluded what it could not: that it was
    cancelled, that it was lost.

    Parameters
    ----------
    record, folder
        The run.
    job_id
        Its job; None if that is still to be found out by its name.
    watch
        What Slurm says of all jobs.
    settle_s
        Seconds after which a file written on one node is seen on another.
    submit
        Submits it again.
    is_cancelled
        Says whether somebody has cancelled the store's runs since this campaign began.
    """

    def __init__(
        self,
        record: RunRecord,
        folder: RunFolder,
        job_id: str | None,
        watch: QueuePoller,
        settle_s: float,
        submit: Callable[[RunRecord, RunFolder], str],
        is_cancelled: Callable[[], bool],
    ) -> None:
        self._run_id, self._folder, self._poller = record.run_id, folder, watch
        self._job_id, self._settle_s, self._submit = job_id, settle_s, submit
        self._is_cancelled = is_cancelled
        self._seen = watch.number
        self._over_since_s: float | None = None
        self._again: RunRecord | None = None  # to be submitted when there is room
        self._ended: Ended | None = None

    def poll(self) -> Ended | None:
        """Return how the run ended, as far as the last look at the queue tells it.

        Now and then it asks Slurm, which takes a moment.
        """
        self._poller.look()
        if self._ended is None and self._poller.number > self._seen and self._poller.is_fresh:
            self._seen = self._poller.number
            try:
                record = self._conclude()
            except (WattlawError, OSError):  # a file system that stumbles; the job goes on
                return None
            self._ended = Ended(record.reason, record=record) if record is not None else None
        return self._ended

    def stop(self) -> None:
        """Cancel the job, and wait until Slurm has ended it; its record says that we did."""
        record = self._folder.read()
        if self._ended is not None or record is None:
            return
        if record.status not in _OVER:
            if self._job_id is not None and self._again is None:
                self._cancel(self._job_id)
            record = self._folder.read() or record  # it may have come to its end
        if record.status not in _OVER:
            told = {"status": "failed", "reason": _CANCELLED}
            record = self._write(record, interrupted=True, **told)
        self._ended = Ended(record.reason, record=record)

    def _cancel(self, job_id: str) -> None:
        try:
            commands.cancel([job_id])
            end_s = time.monotonic() + _GONE_S
            while time.monotonic() < end_s:
                found = [job for job in commands.queue() if job.id == job_id]
                if all(job.is_over for job in found):
                    return
                time.sleep(_LOOK_S)
        except (Unreachable, NotAvailable):
            return  # it is told to the user by the command that cancels

    def _conclude(self) -> RunRecord | None:
        """Return the run's record if it has ended; otherwise see to it that it goes on."""
        job = self._poller.job(self._run_id)
        if job is not None and not job.is_over:
            self._job_id, self._over_since_s, self._again = job.id, None, None
            return None
        if self._again is not None:
            return self._resubmit(self._again)
        if job is not None and self._job_id not in (None, job.id):
            job = None  # one of an earlier try
        record = self._folder.read()
        if record is None or record.status in _OVER:
            return record
        if job is None and self._job_id is not None and self._job_id not in self._poller.asked:
            self._poller.explain(self._job_id)
            return None
        if not self._has_settled():
            return None
        if job is None and self._job_id in self._poller.accounts:
            known = self._poller.accounts[self._job_id]
            code, by = known.exit_code, known.signal
            job = Job(known.id, known.state, "", exit_code=code, signal=by)
        return self._without_word(record, job)

    def _has_settled(self) -> bool:
        """Say whether what the job wrote at its end would be seen by now."""
        now_s = time.monotonic()
        self._over_since_s = self._over_since_s or now_s
        return now_s - self._over_since_s >= self._settle_s

    def _without_word(self, record: RunRecord, job: Job | None) -> RunRecord | None:
        """Conclude on a job that has ended and has not told how."""
        if job is None:
            return self._vanished(record)
        # A warning may come before the driver listens, where the time limit is short.
        was_cut = job.exit_code == INTERRUPTED or job.signal == signal.SIGUSR1
        name = f"job {job.id}"
        if job.state == "CANCELLED":
            ours = self._is_cancelled()
            told = _CANCELLED if ours else f"{name} was cancelled"
            return self._failed(record, told, interrupted=ours)
        if job.state in _LOST or (was_cut and job.state not in _TIMES_UP):
            return self._lost(record, f"{name}: {'interrupted' if was_cut else job.state}")
        if job.state in _TIMES_UP and has_progress(self._folder, record.attempts):
            return self._lost(record, f"{name}: time limit reached")
        why = _WHYS.get(job.state) or REASONS.get(job.exit_code or 0)
        why = why or f"ended {job.state} with exit code {job.exit_code}"
        return self._failed(record, f"{name}: {why}; {self._last_said()}")

    def _vanished(self, record: RunRecord) -> RunRecord | None:
        """Conclude on a job that nobody knows any more."""
        if self._has_told_to_go_on(record):
            return self._resubmit(record)
        told = f"job {self._job_id} has left the queue without a word, and no accounting tells why"
        return self._failed(record, told, interrupted=True)

    def _last_said(self) -> str:
        """Return the last line of the run's log, where there is one."""
        try:
            lines = read_end(self._folder.log_path).split("\n")
        except OSError:
            return (
                f"there is no {self._folder.log_path}: the store must be on a file system that "
                "login node and compute nodes share"
            )
        said = [" ".join(line.split()) for line in lines[-_LAST_LINES:] if line.strip()]
        last = said[-1][:_LONGEST] if said else "nothing was said"
        return f"{last} (log: {self._folder.log_path})"

    def _has_told_to_go_on(self, record: RunRecord) -> bool:
        """Say whether the job itself has told that it was cut, and could not be put back."""
        last = record.interruptions[-1] if record.interruptions else None
        return record.status == "planned" and bool(last and last.job_id == self._job_id)

    def _lost(self, record: RunRecord, why: str) -> RunRecord | None:
        """Have a run that was cut go on in another job."""
        if record.status == "running":
            record = interrupted(record, self._folder, why)
            self._folder.write(record)
            if record.status == "failed":
                return record
        return self._resubmit(record)

    def _resubmit(self, record: RunRecord) -> RunRecord | None:
        try:
            self._job_id, self._again = self._submit(record, self._folder), None
        except ResourcesBusy:
            self._again = record
        except Unreachable:  # it may have been taken; then the queue shows it by its name
            self._again, self._job_id = record, None
        except NotAvailable as error:
            return self._failed(record, f"could not be submitted again: {one_line(error)}")
        self._seen, self._over_since_s = self._poller.number, None
        return None

    def _failed(self, record: RunRecord, reason: str, *, interrupted: bool = False) -> RunRecord:
        return self._write(record, status="failed", reason=reason, interrupted=interrupted)

    def _write(self, record: RunRecord, **changes: object) -> RunRecord:
        after = record.model_copy(update=changes | {"finished_at": now()})
        try:
            self._folder.write(after)
        except OSError as error:  # it is told all the same
            told = f"{after.reason} (not recorded: {one_line(error)})"
            return after.model_copy(update={"reason": told})
        return after
