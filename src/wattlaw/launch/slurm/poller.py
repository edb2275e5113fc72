"""Polling of Slurm's queue for all jobs of a store, at most once per ``launch.slurm.poll_s``."""

import contextlib
import time
from collections import Counter
from collections.abc import Iterable

from wattlaw.errors import NotAvailable
from wattlaw.launch.slurm import commands
from wattlaw.launch.slurm.commands import Account, Job, Unreachable
from wattlaw.launch.slurm.submission import run_id_of

_LONGEST_INTERVAL_S = 600.0


class QueuePoller:
    """The last known state of the jobs of one store.

    It runs at most one Slurm command per ``poll_s``: for the queue, or for the accounts of jobs
    that have disappeared from it. While Slurm does not respond, the intervals grow.

    Parameters
    ----------
    tag
        The store's tag in the names of its jobs.
    poll_s
        Seconds between two commands.
    """

    def __init__(self, tag: str, poll_s: float) -> None:
        self._tag, self._poll_s = tag, poll_s
        #: How often the queue has been read.
        self.number = 0
        self._jobs: dict[str, Job] = {}
        self._next_s, self._interval_s = 0.0, poll_s
        self._failures = 0
        #: The error of the last poll, None if it succeeded.
        self.error: str | None = None
        self._unexplained: set[str] = set()
        self._polls_accounts = False
        self.accounts: dict[str, Account] = {}
        #: Jobs whose accounts have been requested, with or without a result.
        self.explained: set[str] = set()

    def poll(self) -> None:
        """Run a Slurm command if it is due."""
        if time.monotonic() < self._next_s:
            return
        self._polls_accounts = bool(self._unexplained) and not self._polls_accounts
        if self._polls_accounts:  # accounting may be down on its own: alternate with the queue
            with contextlib.suppress(Unreachable):
                self._read_accounts()
            self._next_s = time.monotonic() + self._poll_s
            return
        try:
            self._update_jobs(commands.queue())
            self._failures, self.error = 0, None
        except (Unreachable, NotAvailable) as error:
            self._failures += 1
            self.error = str(error)
        longest_s = max(_LONGEST_INTERVAL_S, self._poll_s)
        self._interval_s = min(self._poll_s * 2 ** min(self._failures, 20), longest_s)
        self._next_s = time.monotonic() + self._interval_s

    def _read_accounts(self) -> None:
        job_ids = sorted(self._unexplained)
        self.accounts |= {account.id: account for account in commands.accounts(job_ids)}
        self.explained |= set(job_ids)
        self._unexplained.clear()

    def _update_jobs(self, jobs: Iterable[Job]) -> None:
        self._jobs = {}
        for job in jobs:
            run_id = run_id_of(job.name, self._tag)
            if run_id is None:
                continue
            other = self._jobs.get(run_id)
            if other is None or _rank(job) > _rank(other):
                self._jobs[run_id] = job
        self.number += 1

    def explain(self, job_id: str) -> None:
        """Request the account of a job with the next poll."""
        self._unexplained.add(job_id)

    def job(self, run_id: str) -> Job | None:
        """Return the last known state of a run's job; an active job precedes an ended one."""
        return self._jobs.get(run_id)

    @property
    def is_fresh(self) -> bool:
        """Say whether the last poll succeeded."""
        return self.number > 0 and self.error is None

    def active(self) -> dict[str, Job]:
        """Return the jobs that have not ended, by run."""
        return {run_id: job for run_id, job in self._jobs.items() if not job.is_over}

    def status_message(self) -> str | None:
        """Return the number of jobs by state, or the error of the last poll."""
        if self.error is not None:
            return f"Slurm does not respond: polling every {self._interval_s:.0f} s ({self.error})"
        return queue_message(self.active().values())


def _rank(job: Job) -> tuple[bool, int, str]:
    """Return a sort key for the jobs of one run: active jobs rank highest, then later ones."""
    return (not job.is_over, len(job.id), job.id)


def queue_message(jobs: Iterable[Job]) -> str | None:
    """Return the number of jobs by state, and the most frequent reason for waiting."""
    listed = list(jobs)
    if not listed:
        return None
    states = Counter(job.state.lower() for job in listed)
    reasons = Counter(job.reason for job in listed if job.is_queued and job.reason != "None")
    counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    reason = f" ({reasons.most_common(1)[0][0]})" if reasons else ""
    return f"Slurm: {counts}{reason}"
