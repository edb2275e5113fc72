"""How the runs of a store stand now: by their records and, where there are jobs, by the queue."""

from collections.abc import Iterable
from dataclasses import dataclass

from wattlaw import registry
from wattlaw.errors import WattlawError
from wattlaw.launch.launcher import GROUP, Launcher
from wattlaw.launch.queue import Job, Queue
from wattlaw.store.record import RunRecord
from wattlaw.store.store import Store

_ENDED = ("done", "failed", "skipped")


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


def queues_of(records: Iterable[RunRecord]) -> list[Queue]:
    """Return the queues of the launchers by which runs were started.

    Raises
    ------
    wattlaw.errors.NotAvailable
        A launcher cannot be loaded.
    """
    kinds = {record.spec.launch_kind for record in records} & set(registry.names(GROUP))
    launchers: list[type[Launcher]] = [registry.load(GROUP, kind) for kind in sorted(kinds)]
    return [launcher.queue for launcher in launchers if launcher.queue is not None]


def standings(store: Store) -> tuple[list[Standing], str | None]:
    """Return how each run of a store stands, in order of run id, and why a queue is not known."""
    read = [(folder, record) for folder in store.folders() if (record := folder.read())]
    jobs: dict[str, Job] = {}
    trouble = None
    try:
        for queue in queues_of(record for _, record in read):
            jobs |= queue.jobs(store)
    except WattlawError as error:  # the records say much all the same
        trouble = str(error)
    found = []
    for folder, first in read:
        # A job that was not in the queue any more may have told its run's end meanwhile.
        record = first if first.status in _ENDED else folder.read() or first
        job = None if record.status in _ENDED else jobs.get(record.run_id)
        state = folder.status(record)
        if job is not None:
            state = "queued" if job.is_queued else "running"
        found.append(Standing(state, record, job))
    return found, trouble
