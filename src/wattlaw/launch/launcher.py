"""The seam for places where runs happen: a ``Launcher`` starts runs, tells of them, stops them."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from wattlaw.errors import WattlawError
from wattlaw.launch.queue import Queue
from wattlaw.store.record import RunRecord
from wattlaw.store.run_folder import RunFolder
from wattlaw.study.launching import Launch
from wattlaw.study.model import RunSpec

GROUP = "wattlaw.launchers"


class ResourcesBusy(WattlawError):
    """A run that could not be started now may be later; the text says what it waits for."""


@dataclass(frozen=True)
class Ended:
    """How an attempt ended; ``reason`` is None when it ended well.

    A launcher that has put a run's record, and the tables of a done one, in the store itself
    gives that ``record``; the live files of others are brought home.
    """

    reason: str | None = None
    notes: tuple[str, ...] = ()
    record: RunRecord | None = None


class Attempt(Protocol):
    """One attempt at a run, under way or ended."""

    def poll(self) -> Ended | None:
        """Return how it ended, or None while it is under way; never waits for its end."""

    def stop(self) -> None:
        """End it and everything that it started, and wait until nothing is left."""


class Allocation(Protocol):
    """The room that one run takes."""

    def release(self) -> None:
        """Give it back; more than once is harmless."""


class Launcher(Protocol):
    """Registered under the entry point ``wattlaw.launchers``."""

    #: Whether what runs leave is worth waiting for the disk, as measurements are: a power cut
    #: costs them nothing. What is not is whole or not there only as long as the system runs.
    is_durable: bool
    #: Where attempts live on without us, and number themselves, None where they end with us. A
    #: campaign that is asked to end leaves such attempts, and a later one takes up those it finds.
    queue: Queue | None

    @classmethod
    def resolve(cls, launch: Launch) -> Launch:
        """Return a study's launch with what this launcher knows before it starts anything.

        That is the hardware's label and the GPUs per node, which are part of runs' identity.

        Raises
        ------
        wattlaw.errors.BadInput
            Settings of this launcher are missing or do not fit together.
        """

    @classmethod
    def open(cls, launch: Launch, store: Path) -> Self:
        """Get ready to launch runs of a store.

        Raises
        ------
        wattlaw.errors.NotAvailable
            What this launcher needs is not there.
        """

    def unsupported_reason(self, spec: RunSpec) -> str | None:
        """Return why a run can never happen here (it is skipped), or None."""

    def allocate(self, spec: RunSpec) -> Allocation | None:
        """Take the room that a run needs beside those under way; None while there is none."""

    def start(self, record: RunRecord, folder: RunFolder, allocation: Any) -> Attempt:
        """Start the attempt that ``record.attempts`` numbers; its live folder is there.

        The attempt releases ``allocation``, which came from this launcher, when it has ended.

        Raises
        ------
        wattlaw.errors.NotAvailable
            What the run asks for, such as a power limit, cannot be had; it is skipped.
        ResourcesBusy
            It can be had later.
        """

    def detached_run_ids(self) -> Collection[str]:
        """Return the ids of runs of this store that are under way and that nobody here watches."""

    def reattach(self, record: RunRecord, folder: RunFolder) -> Attempt | None:
        """Return the attempt at a run that an earlier campaign has left, None where none is."""

    def status_message(self) -> str | None:
        """Return in a few words how things stand, where there is more to tell than the runs."""

    def close(self) -> None:
        """Let go of what the launcher holds beside its attempts.

        They have all ended, or live on by themselves.
        """


class AttachedLauncher:
    """What launchers have in common whose attempts end with the process that started them."""

    queue = None

    def detached_run_ids(self) -> Collection[str]:
        """Return nothing: nothing goes on without us."""
        return ()

    def reattach(self, record: RunRecord, folder: RunFolder) -> None:
        """Return None: nothing is left of an attempt."""

    def status_message(self) -> str | None:
        """Return None: the runs say it all."""
        return None
