"""How the runs of a store stand now: by their records and, where there are jobs, by the queue."""

from dataclasses import dataclass

from wattlaw.errors import NotAvailable, WattlawError
from wattlaw.launch.slurm import commands
from wattlaw.launch.slurm.commands import Job
from wattlaw.launch.slurm.submitted import known_tag, run_of
from wattlaw.store.record import RunRecord
from wattlaw.store.store import Store


@dataclass(frozen=True)
class Standing:
    """One run: its state in a word, its record, and its job if it has one in the queue."""

    state: str
    record: RunRecord
    job: Job | None = None

    @property
    def reason(self) -> str | None:
        """Return why it is so, in words."""
        if self.job is not None:
            why = f" ({self.job.reason})" if self.job.reason not in ("", "None") else ""
            return f"job {self.job.id}: {self.job.state}{why}"
        site = self.record.site
        if self.state == "running" and site is not None:
            return (
                f"job {site.job_id} is not in the queue; 'wattlaw run' finds out what became of it"
            )
        return self.record.reason


def jobs_of(store: Store) -> dict[str, Job]:
    """Return the jobs of a store that have not ended, by run; one question to the scheduler.

    A store that never had jobs asks nobody.

    Raises
    ------
    NotAvailable
        There are jobs, and the scheduler does not answer here.
    """
    tag = known_tag(store.path)
    if tag is None:
        return {}
    try:
        found = commands.queue()
    except WattlawError as error:
        raise NotAvailable(str(error)) from None
    named = ((run_of(job.name, tag), job) for job in found if not job.is_over)
    return {run_id: job for run_id, job in named if run_id is not None}


def standings(store: Store, jobs: dict[str, Job]) -> list[Standing]:
    """Return how each run of a store stands, in order of run id."""
    found = []
    for folder in store.folders():
        record = folder.read()
        if record is None:
            continue
        job = jobs.get(record.run_id)
        if record.status in ("done", "failed", "skipped"):
            job = None  # it has told its end already
        state = folder.status(record)
        if job is not None:
            state = "queued" if job.is_queued else "running"
        found.append(Standing(state, record, job))
    return found
