"""The seam for schedulers: what waits and goes on without us, seen and ended from anywhere."""

from collections.abc import Collection, Mapping
from typing import Protocol

from wattlaw.store.run_folder import RunFolder
from wattlaw.store.store import Store
from wattlaw.study.launching import Launch
from wattlaw.study.plan import PlannedRun


class Job(Protocol):
    """What a scheduler holds for one run."""

    @property
    def id(self) -> str:
        """Return what the scheduler calls it."""

    @property
    def state(self) -> str:
        """Return its state in the scheduler's word."""

    @property
    def reason(self) -> str:
        """Return why it waits, in the scheduler's word; "" or "None" where there is none."""

    @property
    def is_queued(self) -> bool:
        """Say whether it waits for its nodes."""


class Queue(Protocol):
    """The ``queue`` of a launcher whose attempts live on without us."""

    def jobs(self, store: Store) -> Mapping[str, Job]:
        """Return the jobs of a store that have not ended, by run; one question at most.

        A store that never had jobs there asks nobody.

        Raises
        ------
        wattlaw.errors.WattlawError
            There may be jobs, and the scheduler does not answer here.
        """

    def cancel(self, job_ids: Collection[str]) -> None:
        """End jobs; those that have ended already are no error.

        Raises
        ------
        wattlaw.errors.WattlawError
            The scheduler does not answer, or does not let this user.
        """

    def was_submitted(self, folder: RunFolder) -> bool:
        """Say whether a run was ever given to the scheduler.

        Raises
        ------
        wattlaw.errors.BadInput
            What tells it cannot be read.
        """

    def submission_command(self, launch: Launch, run: PlannedRun, store: Store) -> str:
        """Return how a run would be submitted, for people to look at."""
