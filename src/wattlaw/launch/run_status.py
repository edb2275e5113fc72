"""How the runs of a store stand now: by their records and, where there are jobs, by the queue."""

from dataclasses import dataclass

from wattlaw import registry
from wattlaw.errors import WattlawError, one_line
from wattlaw.launch.launcher import GROUP, Launcher
from wattlaw.launch.queue import Job, Queue
from wattlaw.store.record import RunRecord
from wattlaw.store.store import Store


@dataclass(frozen=True)
class RunStatus:
    """One run: its state in a word, its record, and its job if it has one in the queue.

    A run that cannot be read is ``damaged``: ``damage`` says why, and it has no record.
    """

    run_id: str
    state: str
    record: RunRecord | None
    job: Job | None = None
    damage: str | None = None

    @property
    def reason(self) -> str | None:
        """Return why it is so, in words."""
        if self.job is not None:
            why = f" ({self.job.reason})" if self.job.reason not in ("", "None") else ""
            return f"job {self.job.id}: {self.job.state}{why}"
        if self.record is None:
            return self.damage
        site = self.record.site
        if self.state == "running" and site is not None:
            return (
                f"job {site.job_id} is not in the queue; 'wattlaw run' finds out what became of it"
            )
        return self.record.reason


def load_queues() -> tuple[list[Queue], list[str]]:
    """Return the load_queues of all launchers here, and why a launcher cannot be loaded."""
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


def run_statuses(store: Store) -> tuple[list[RunStatus], list[str]]:
    """Return how each run of a store stands, in order of run id, and why a queue is not known."""
    jobs: dict[str, Job] = {}
    asked, troubles = load_queues()
    for queue in asked:  # before the records: a job that ends meanwhile has told so there
        try:
            jobs |= queue.jobs(store)
        except WattlawError as error:  # the records say much all the same
            troubles.append(str(error))
    found = []
    for folder in store.folders():
        job = jobs.get(folder.run_id)
        try:
            record = folder.read()
            if record is None:
                continue
            if record.status == "done":
                folder.finished("epochs")
                folder.finished("telemetry")
            state = folder.status(record)
        except (WattlawError, OSError) as error:
            found.append(RunStatus(folder.run_id, "damaged", None, job, one_line(error)))
            continue
        if record.status in ("done", "failed", "skipped"):
            job = None  # it has told its end already
        if job is not None:
            state = "queued" if job.is_queued else "running"
        found.append(RunStatus(folder.run_id, state, record, job))
    return found, troubles
