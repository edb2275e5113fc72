"""The status of the runs of a store, from their records and from the queues of their jobs."""

from dataclasses import dataclass

from wattlaw import registry
from wattlaw.errors import WattlawError, one_line
from wattlaw.launch.launcher import GROUP, Launcher
from wattlaw.launch.queue import Job, Queue
from wattlaw.store.record import RunRecord
from wattlaw.store.store import Store


@dataclass(frozen=True)
class RunStatus:
    """One run: its state, its record, and its job if it is in a queue.

    A run that cannot be read has the state ``damaged``, the reason in ``damage``, and no record.
    """

    run_id: str
    state: str
    record: RunRecord | None
    job: Job | None = None
    damage: str | None = None

    @property
    def reason(self) -> str | None:
        """Return the reason of the state as a message."""
        if self.job is not None:
            why = f" ({self.job.reason})" if self.job.reason not in ("", "None") else ""
            return f"job {self.job.id}: {self.job.state}{why}"
        if self.record is None:
            return self.damage
        site = self.record.site
        if self.state == "running" and site is not None:
            return f"job {site.job_id} is not in the queue; run 'wattlaw run' to update its status"
        return self.record.reason


def load_queues() -> tuple[list[Queue], list[str]]:
    """Return the queues of all launchers, and the errors of launchers that cannot be loaded."""
    queues: list[Queue] = []
    troubles = []
    for name in registry.names(GROUP):
        try:
            launcher: type[Launcher] = registry.load(GROUP, name)
        except WattlawError as error:
            troubles.append(str(error))
            continue
        if launcher.queue is not None:
            queues.append(launcher.queue)
    return queues, troubles


def run_statuses(store: Store) -> tuple[list[RunStatus], list[str]]:
    """Return the status of each run of a store, in order of run id, and the errors of queues."""
    jobs: dict[str, Job] = {}
    queues, troubles = load_queues()
    for queue in queues:  # before the records: a job that ends in between has updated its record
        try:
            jobs |= queue.jobs(store)
        except WattlawError as error:  # the records are still useful
            troubles.append(str(error))
    statuses = []
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
            statuses.append(RunStatus(folder.run_id, "damaged", None, job, one_line(error)))
            continue
        if record.status in ("done", "failed", "skipped"):
            job = None  # the run has ended
        if job is not None:
            state = "queued" if job.is_queued else "running"
        statuses.append(RunStatus(folder.run_id, state, record, job))
    return statuses, troubles
