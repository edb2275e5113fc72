"""One look at the queue for all jobs of a store, as seldom as the study allows."""

import contextlib
import time
from collections import Counter
from collections.abc import Iterable

from wattlaw.errors import NotAvailable
from wattlaw.launch.slurm import commands
from wattlaw.launch.slurm.commands import Account, Job, Unreachable
from wattlaw.launch.slurm.submission import run_id_of

_LONGEST_PAUSE_S = 600.0


class QueuePoller:
    """What Slurm said last of the jobs of one store.

    It asks one question at a time, and at most one per ``poll_s``: for the queue or, after jobs
    that have left it unexplained, for their accounts. Where Slurm does not answer, nothing is
    concluded, and the pauses grow.

    Parameters
    ----------
    tag
        Of the store.
    poll_s
        Seconds between questions.
    """

    def __init__(self, tag: str, poll_s: float) -> None:
        self._tag, self._poll_s = tag, poll_s
        #: How often the queue has been seen.
        self.number = 0
        self._jobs: dict[str, Job] = {}
        self._next_s, self._pause_s = 0.0, poll_s
        self._failures = 0
        #: Why the last question was not answered.
        self.trouble: str | None = None
        self._unexplained: set[str] = set()
        self._asks_accounts = False
        self.accounts: dict[str, Account] = {}
        #: Jobs whose accounts have been asked for, whatever came.
        self.asked: set[str] = set()

    def look(self) -> None:
        """Ask Slurm, if it is time."""
        if time.monotonic() < self._next_s:
            return
        self._asks_accounts = bool(self._unexplained) and not self._asks_accounts
        if self._asks_accounts:  # they may be down by themselves: the next question is the queue
            with contextlib.suppress(Unreachable):
                self._explain()
            self._next_s = time.monotonic() + self._poll_s
            return
        try:
            self._take(commands.queue())
            self._failures, self.trouble = 0, None
        except (Unreachable, NotAvailable) as error:
            self._failures += 1
            self.trouble = str(error)
        longest_s = max(_LONGEST_PAUSE_S, self._poll_s)
        self._pause_s = min(self._poll_s * 2 ** min(self._failures, 20), longest_s)
        self._next_s = time.monotonic() + self._pause_s

    def _explain(self) -> None:
        asked = sorted(self._unexplained)
        found = commands.accounts(asked)
        self.accounts |= {one.id: one for one in found}
        self.asked |= set(asked)
        self._unexplained.clear()

    def _take(self, jobs: Iterable[Job]) -> None:
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
        """Have the next question be for a job's account."""
        self._unexplained.add(job_id)

    def job(self, run_id: str) -> Job | None:
        """Return a run's job as it was seen last; one that lives rather than one that ended."""
        return self._jobs.get(run_id)

    @property
    def is_fresh(self) -> bool:
        """Say whether the last question was answered."""
        return self.number > 0 and self.trouble is None

    def active(self) -> dict[str, Job]:
        """Return the jobs that have not ended, by run."""
        return {run_id: job for run_id, job in self._jobs.items() if not job.is_over}

    def status_message(self) -> str | None:
        """Return how the jobs stand, or that Slurm does not say."""
        if self.trouble is not None:
            return f"Slurm does not answer: asking every {self._pause_s:.0f} s ({self.trouble})"
        return queue_message(self.active().values())


def _rank(job: Job) -> tuple[bool, int, str]:
    """Order the jobs of one run: one that lives comes first, then the latest."""
    return (not job.is_over, len(job.id), job.id)


def queue_message(jobs: Iterable[Job]) -> str | None:
    """Return how many jobs are in which state, and why those wait that do."""
    listed = list(jobs)
    if not listed:
        return None
    states = Counter(job.state.lower() for job in listed)
    reasons = Counter(job.reason for job in listed if job.is_queued and job.reason != "None")
    told = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    why = f" ({reasons.most_common(1)[0][0]})" if reasons else ""
    return f"Slurm: {told}{why}"
