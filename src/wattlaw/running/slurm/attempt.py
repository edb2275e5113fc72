"""Attempts as jobs of Slurm, seen from outside; the run of a lost job is planned again."""

import contextlib
import signal
import time
from collections import Counter
from typing import TYPE_CHECKING

from wattlaw.common.errors import NotAvailable, WattlawError, one_line
from wattlaw.common.files import read_end
from wattlaw.common.text import collapse_whitespace
from wattlaw.running.finish import finish
from wattlaw.running.launcher import Ended
from wattlaw.running.slurm import commands
from wattlaw.running.slurm.commands import Job, Unreachable
from wattlaw.running.slurm.submission import (
    ENDED,
    INTERRUPTED,
    REASONS,
    Submission,
    by_run,
    has_progress,
    interrupted,
)
from wattlaw.store.record import RunRecord
from wattlaw.store.run_folder import RunFolder

if TYPE_CHECKING:
    from wattlaw.running.slurm.slurm_launcher import SlurmLauncher

_LONGEST_INTERVAL_S = 600.0
_CANCEL_TIMEOUT_S, _CANCEL_POLL_S = 60.0, 1.0
#: States of a job that was ended by something else than the run.
_LOST_STATES = {"NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "REVOKED"}
_TIMEOUT_STATES = ("TIMEOUT", "DEADLINE")
_STATE_REASONS = {
    "TIMEOUT": "reached its time limit before it saved a checkpoint; increase "
    "launch.slurm.time or launch.slurm.warn_s",
    "OUT_OF_MEMORY": "ran out of memory on its nodes; request more (launch.slurm.options: mem)",
}
_CANCELLED = "cancelled by 'wattlaw cancel'"
_LAST_LINES, _LONGEST = 50, 200


class QueuePoller:
    """The last known state of the jobs of one store, which have its tag in their names.

    It reads the queue once per ``poll_s``. While Slurm does not respond, the intervals grow.
    """

    def __init__(self, tag: str, poll_s: float) -> None:
        self.tag, self._poll_s = tag, poll_s
        self.number = 0  # how often the queue has been read
        self.error: str | None = None  # of the last poll
        self._jobs: dict[str, Job] = {}
        self._next_s, self._interval_s, self._failures = 0.0, poll_s, 0

    def poll(self) -> None:
        if time.monotonic() < self._next_s:
            return
        try:
            # Of the jobs of a run, an active one precedes ended ones, a later one earlier ones.
            jobs = sorted(commands.queue(), key=lambda job: (not job.is_over, len(job.id), job.id))
            self._jobs = by_run(jobs, self.tag)
            self.number += 1
            self._failures, self.error = 0, None
        except (Unreachable, NotAvailable) as error:
            self._failures += 1
            self.error = str(error)
        longest_s = max(_LONGEST_INTERVAL_S, self._poll_s)
        self._interval_s = min(self._poll_s * 2 ** min(self._failures, 20), longest_s)
        self._next_s = time.monotonic() + self._interval_s

    def job(self, run_id: str) -> Job | None:
        return self._jobs.get(run_id)

    @property
    def is_fresh(self) -> bool:
        return self.number > 0 and self.error is None

    def active(self) -> dict[str, Job]:
        return {run_id: job for run_id, job in self._jobs.items() if not job.is_over}

    def status_message(self) -> str | None:
        if self.error is not None:
            return f"Slurm does not respond: polling every {self._interval_s:.0f} s ({self.error})"
        jobs = self.active().values()
        states = Counter(job.state.lower() for job in jobs)
        reasons = Counter(job.reason for job in jobs if job.is_queued and job.reason != "None")
        counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        reason = f" ({reasons.most_common(1)[0][0]})" if reasons else ""
        return f"Slurm: {counts}{reason}" if jobs else None


class SlurmAttempt:
    """A run whose job is queued, running, or has ended.

    The job writes the run's record; this class does for a job that was cancelled or lost.
    """

    def __init__(
        self, launcher: "SlurmLauncher", record: RunRecord, folder: RunFolder, job_id: str | None
    ) -> None:
        self._launcher, self._poller, self._seen = launcher, launcher.poller, launcher.poller.number
        self._record, self._folder = record, folder
        self._job_id = job_id  # None if only the job's name is known
        self._over_since_s: float | None = None
        self._ended: Ended | None = None

    def poll(self) -> Ended | None:
        self._poller.poll()
        if self._ended is None and self._poller.number > self._seen and self._poller.is_fresh:
            self._seen = self._poller.number
            try:
                record = self._advance()
            except (WattlawError, OSError):  # a temporary failure of the file system
                return None
            self._ended = Ended(record.reason, record=record) if record is not None else None
        return self._ended

    def stop(self) -> None:
        record = self._folder.read()
        if self._ended is not None or record is None:
            return
        if record.status not in ENDED and self._job_id is not None:
            # 'wattlaw cancel' reports it if Slurm does not respond.
            with contextlib.suppress(Unreachable, NotAvailable):
                commands.cancel([self._job_id])
                end_s = time.monotonic() + _CANCEL_TIMEOUT_S
                while time.monotonic() < end_s and any(
                    job.id == self._job_id and not job.is_over for job in commands.queue()
                ):
                    time.sleep(_CANCEL_POLL_S)
            record = self._folder.read() or record  # the run may have ended meanwhile
        if record.status not in ENDED:
            record = self._failed(record, _CANCELLED, interrupted=True)
        self._ended = Ended(record.reason, record=record)

    def _advance(self) -> RunRecord | None:
        """Return the record of a run whose job has ended; None while the job is active."""
        job = self._poller.job(self._record.run_id)
        if job is not None and not job.is_over:
            self._job_id, self._over_since_s = job.id, None
            return None
        record = self._folder.read()
        if record is None or record.status in ENDED:
            return record
        if job is not None and self._job_id not in (None, job.id):
            job = None  # a job of an earlier attempt
        self._over_since_s = self._over_since_s or time.monotonic()
        if time.monotonic() - self._over_since_s < self._launcher.settle_s:
            return None  # files of the job may not be visible yet
        return self._handle_unrecorded_end(record, job)

    def _handle_unrecorded_end(self, record: RunRecord, job: Job | None) -> RunRecord:
        if job is None:
            last = record.interruptions[-1] if record.interruptions else None
            if record.status == "planned" and last and last.job_id == self._job_id:
                return self._plan_again(record)  # the job recorded its interruption
            gone = f"job {self._job_id} is no longer in the queue"
            return self._failed(record, f"{gone}; sacct may say why", interrupted=True)
        # With a short time limit, SIGUSR1 may come before the driver handles it.
        was_interrupted = job.exit_code == INTERRUPTED or job.signal == signal.SIGUSR1
        name, is_timeout = f"job {job.id}", job.state in _TIMEOUT_STATES
        if job.state == "CANCELLED":
            by_store = self._launcher.is_cancelled()
            cancelled = _CANCELLED if by_store else f"{name} was cancelled"
            return self._failed(record, cancelled, interrupted=by_store)
        why = None
        if job.state in _LOST_STATES or (was_interrupted and not is_timeout):
            why = "interrupted" if was_interrupted else job.state
        elif is_timeout and has_progress(self._folder, record.attempts):
            why = "time limit reached"
        if why is None:
            reason = _STATE_REASONS.get(job.state) or REASONS.get(job.exit_code or 0)
            reason = reason or f"ended {job.state} with exit code {job.exit_code}"
            return self._failed(record, f"{name}: {reason}; {self._last_log_line()}")
        if record.status == "running":
            record = interrupted(record, self._folder, f"{name}: {why}")
            self._folder.write(record)
        return record if record.status == "failed" else self._plan_again(record)

    def _plan_again(self, record: RunRecord) -> RunRecord:
        Submission.path(self._folder).unlink(missing_ok=True)  # of the job that was lost
        return record

    def _last_log_line(self) -> str:
        try:
            lines = read_end(self._folder.log_path).split("\n")
        except OSError:
            return (
                f"there is no {self._folder.log_path}: the store must be on a file system that "
                "login node and compute nodes share"
            )
        printed = [collapse_whitespace(line) for line in lines[-_LAST_LINES:] if line.strip()]
        last = printed[-1][:_LONGEST] if printed else "the log is empty"
        return f"{last} (log: {self._folder.log_path})"

    def _failed(self, record: RunRecord, reason: str, *, interrupted: bool = False) -> RunRecord:
        record = finish(record, self._folder, reason)
        record = record.model_copy(update={"interrupted": interrupted})
        try:
            self._folder.write(record)
        except OSError as error:  # the campaign reports the run in any case
            reason = f"{reason} (not recorded: {one_line(error)})"
            return record.model_copy(update={"reason": reason})
        return record
