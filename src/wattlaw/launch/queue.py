"""The interface of schedulers: their jobs can be listed and cancelled without a campaign."""

from collections.abc import Collection, Mapping
from typing import Protocol

from wattlaw.store.run_folder import RunFolder
from wattlaw.store.store import Store
from wattlaw.study.launching import Launch
from wattlaw.study.plan import PlannedRun


class Job(Protocol):
    """A scheduler's job of one run."""

    @property
    def id(self) -> str:
        """Return the scheduler's id of the job."""

    @property
    def state(self) -> str:
        """Return the scheduler's name of the job's state."""

    @property
    def reason(self) -> str:
        """Return the scheduler's reason why the job waits; "" or "None" if there is none."""

    @property
    def is_queued(self) -> bool:
        """Say whether the job waits for its nodes."""


class Queue(Protocol):
    """The ``queue`` of a launcher whose attempts outlive the campaign."""

    def jobs(self, store: Store) -> Mapping[str, Job]:
        """Return the jobs of a store that have not ended, by run, with one command at most.

        For a store that never had jobs no command is run.

        Raises
        ------
        wattlaw.errors.WattlawError
            There may be jobs, but the scheduler does not respond.
        """

    def cancel(self, job_ids: Collection[str]) -> None:
        """Cancel jobs; ended jobs are ignored.

        Raises
        ------
        wattlaw.errors.WattlawError
            The scheduler does not respond, or does not permit it.
        """

    def was_submitted(self, folder: RunFolder) -> bool:
        """Say whether a run was ever submitted to the scheduler.

        Raises
        ------
        wattlaw.errors.BadInput
            The file of the submission is damaged.
        """

    def submission_command(self, launch: Launch, run: PlannedRun, store: Store) -> str:
        """Return the command that would submit a run, for display."""
