"""The interfaces of launchers, which start, watch and stop runs, and of schedulers' queues."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from wattlaw.common.errors import WattlawError
from wattlaw.store.record import RunRecord
from wattlaw.store.run_folder import RunFolder
from wattlaw.store.store import Store
from wattlaw.study.launching import Launch
from wattlaw.study.model import RunSpec, Study
from wattlaw.study.plan import PlannedRun


class Job(Protocol):
    """A scheduler's job of one run."""

    @property
    def id(self) -> str: ...

    @property
    def state(self) -> str: ...

    @property
    def reason(self) -> str:
        """Return why the job waits, in the scheduler's words; "" or "None" if it does not."""

    @property
    def is_queued(self) -> bool: ...


class Queue(Protocol):
    """The ``queue`` of a launcher whose attempts outlive the campaign."""

    def jobs(self, store: Store) -> Mapping[str, Job]:
        """Return the jobs of a store that have not ended, by run, with one command at most.

        For a store that never had jobs no command is run. Raises ``WattlawError`` if there may be
        jobs, but the scheduler does not respond.
        """

    def cancel(self, job_ids: Collection[str]) -> None:
        """Cancel jobs; ended jobs are ignored. Raises ``WattlawError`` as ``jobs`` does."""

    def was_submitted(self, folder: RunFolder) -> bool:
        """Say whether a run was ever submitted; raise ``BadInput`` if its files are damaged."""

    def submission_command(self, launch: Launch, run: PlannedRun, store: Store) -> str:
        """Return the command that would submit a run, for display."""


GROUP = "wattlaw.launchers"
#: The begin of every run that is not measured, on its own clock: 2020-01-01 00:00 UTC.
VIRTUAL_BEGIN_NS = 1_577_836_800 * 10**9


class ResourcesBusy(WattlawError):
    """A run cannot be started now, but it may be later; the message says what it waits for."""


@dataclass(frozen=True)
class Ended:
    """The end of an attempt; ``reason`` is None if it succeeded.

    A launcher that stores a run's record and tables itself sets ``record``; if that is planned
    again, the campaign starts another attempt. For other launchers the campaign converts the live
    files of the attempt.
    """

    reason: str | None = None
    notes: tuple[str, ...] = ()
    record: RunRecord | None = None


class Attempt(Protocol):
    """One attempt at a run, active or ended."""

    def poll(self) -> Ended | None:
        """Return how the attempt ended, or None while it is active; does not block."""

    def stop(self) -> None:
        """End the attempt and every process that it started, and wait for their end."""


class Allocation:
    """The resources of one run; this base class has none."""

    def release(self) -> None:
        """Release the resources; repeated calls do nothing."""


class Launcher(Protocol):
    """Registered under the entry point ``wattlaw.launchers``.

    The defaults are those of a launcher whose attempts end with the process that started them.
    """

    #: Whether writes wait for the disk (fsync), so that results survive a power failure.
    #: Measurements do; simulated results can be computed again.
    is_durable: bool = True
    #: The scheduler's queue if attempts outlive the campaign and number themselves; None if they
    #: end with the campaign. A campaign that is interrupted leaves attempts in a queue running,
    #: and a later campaign reattaches to them.
    queue: Queue | None = None
    #: The most attempts of one campaign at a time; None if the resources are the limit.
    most_active: int | None = None
    #: Whether runs that are unsupported may be possible on another machine.
    is_of_machine: bool = False

    @classmethod
    def resolve(cls, study: Study) -> Study:
        """Return the study with the launcher's own values filled in, before its plan is made.

        These are the label of the hardware and the GPUs per node, which are part of a run's
        identity. Raises ``BadInput`` if settings of this launcher are missing or contradict each
        other, or it has no run of one of the workloads.
        """
        return study

    @classmethod
    def open(cls, launch: Launch, store: Path) -> Self:
        """Return a launcher that is ready; ``NotAvailable`` if a program or device is missing."""

    @classmethod
    def examine(cls, launch: Launch) -> Self:
        """Return a launcher that answers questions about runs, and starts none.

        Nothing is started, locked or changed, and programs and devices may be missing.
        """
        return cls.open(launch, Path())

    def unsupported_reason(self, spec: RunSpec) -> str | None:
        """Return why this launcher can never execute a run, so that it is skipped, or None."""

    def warnings(self, specs: Sequence[RunSpec]) -> Iterable[str]:  # noqa: ARG002
        """Return sentences on what may stop some runs, of which it gets one of each setting."""
        return ()

    def missing(self, study: Study) -> Sequence[str]:  # noqa: ARG002
        """Return sentences on what the environment lacks, so that no workload could train.

        These are packages, and kernels of torch for the boards.
        """
        return ()

    def allocate(self, spec: RunSpec) -> Allocation | None:  # noqa: ARG002
        """Return the resources for a run, or None while they are busy."""
        return Allocation()

    def start(self, record: RunRecord, folder: RunFolder, allocation: Any) -> Attempt:
        """Start attempt number ``record.attempts``; its live folder exists.

        The attempt releases ``allocation``, which this launcher has returned, when it has ended.
        Raises ``NotAvailable`` if a requirement of the run, such as a power limit, cannot be met,
        so that it is skipped, and ``ResourcesBusy`` if it is to be tried again later.
        """

    def detached_run_ids(self) -> Collection[str]:
        """Return the ids of active runs of this store that this launcher does not watch."""
        return ()

    def reattach(self, record: RunRecord, folder: RunFolder) -> Attempt | None:  # noqa: ARG002
        """Return the attempt that an earlier campaign has started, None if there is none."""
        return None

    def status_message(self) -> str | None:
        """Return a short message about the launcher's own state, such as its queue, or None."""
        return None

    def close(self) -> None:
        """Release the launcher's own resources; its attempts have ended or are detached."""
        return
