"""How the runs of a store stand now: by their records and, where there are jobs, by the queue."""

from dataclasses import dataclass

from wattlaw import registry
from wattlaw.errors import WattlawError
from wattlaw.launch.launcher import GROUP, Launcher
from wattlaw.launch.queue import Job, Queue
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


def queues() -> tuple[list[Queue], list[str]]:
    """Return the queues of all launchers here, and why a launcher cannot be loaded."""
    found: list[Queue] = []
    troubles = []
    for name in registry.names(GROUP):
        try:
            launcher: type[Launcher] = registry.load(GROUP, name)
        except WattlawError as error:
            troubles.append(str(error))
            continue
        if launcher.queue is not None:
            found.append(launcher.queue)
    return found, troubles


def standings(store: Store) -> tuple[list[Standing], list[str]]:
    """Return how each run of a store stands, in order of run id, and why a queue is not known.

    Raises
    ------
    wattlaw.errors.BadInput
        A record cannot be read.
    """
    jobs: dict[str, Job] = {}
    asked, troubles = queues()
    for queue in asked:  # before the records: a job that ends meanwhile has told so there
        try:
            jobs |= queue.jobs(store)
        except WattlawError as error:  # the records say much all the same
            troubles.append(str(error))
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
    return found, troubles
