"""What the hooks keep on a node: previous limits, for root only, and what jobs are told."""

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from pydantic import BaseModel, ConfigDict

from wattlaw.devices.limiter import Limiter
from wattlaw.devices.nvidia.limiter import NvidiaLimiter
from wattlaw.errors import NotAvailable
from wattlaw.files import write_text
from wattlaw.limits.restore import recover, restore
from wattlaw.limits.site.job import Job, Place, tell
from wattlaw.limits.state_folder import SavedState, StateFolder
from wattlaw.limits.trust import only_root_writes
from wattlaw.store.record import LimitReport

#: A prolog and an epilog of two jobs, or a watchdog, hold a board for as long as the driver takes.
_LOCK_WAIT_S = 30.0


class SiteReport(BaseModel):
    """What became of a job's request on one node, for the job to read."""

    model_config = ConfigDict(frozen=True)

    job_id: str
    node: str
    power_limit_w: float | None = None  # asked for
    clock_limit_mhz: float | None = None
    refused: str | None = None  # why nothing was limited
    limits: tuple[LimitReport, ...] = ()


def write_report(place: Place, report: SiteReport) -> None:
    """Put a report where its job reads it, and only root writes.

    Raises
    ------
    NotAvailable
        Others may write there.
    OSError
        It cannot be written.
    """
    place.reports.mkdir(mode=0o755, parents=True, exist_ok=True)
    only_root_writes(place.reports)
    text = report.model_dump_json(indent=1) + "\n"
    write_text(place.report(report.job_id, report.node), text, durable=False)


def remove_report(place: Place, job_id: str, node: str) -> None:
    """Remove the report of a job. What cannot be removed is told, and stops nothing."""
    path = place.report(job_id, node)
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        tell(f"{path}: cannot be removed: {error.strerror}")


class SiteStates(StateFolder):
    """The folder of previous limits. Root believes what is in it, so it is root's alone."""

    def __init__(self, place: Place) -> None:
        super().__init__(place.state)

    def create(self) -> None:
        """Make the folder; raises ``NotAvailable`` if it cannot be made or others may write it."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise NotAvailable(f"{self.path}: cannot be made: {error.strerror}") from None
        self.check()
        self.path.chmod(0o700)

    def check(self) -> None:
        """Raise ``NotAvailable`` if others than root may change what is in it."""
        only_root_writes(self.path)

    def here(self) -> list[SavedState]:
        """Return the saved states of this machine; raises as ``check`` does."""
        return [s for s in self.all() if s.is_of_this_host and not s.is_foreign]

    @contextmanager
    def held(self, devices: Iterable[str]) -> Iterator[None]:
        """Keep every other hook away from devices; raises ``NotAvailable`` if one holds them."""
        end_s = time.monotonic() + _LOCK_WAIT_S
        locks: list[int] = []
        try:
            for device in sorted(set(devices)):
                while (lock := self.lock(device)) is None:
                    if time.monotonic() > end_s:
                        raise NotAvailable(f"{device}: another prolog or epilog is changing it")
                    time.sleep(0.1)
                locks.append(lock)
            yield
        finally:
            for lock in locks:
                os.close(lock)

    def restore(
        self,
        device: str,
        known: dict[str, Limiter],
        token: str,
        *,
        is_stale: bool = False,
    ) -> None:
        """Give a device back what it had, if what is saved of it is what is meant, and forget it.

        Parameters
        ----------
        device
            The device.
        known
            What can limit it.
        token
            That of the saved state that is meant; there may be another by now.
        is_stale
            Nobody knows how long ago its job ended. What somebody has set since then stays.

        Raises
        ------
        WattlawError
            It could not be given back. The saved state stays.
        """
        with self.held([device]):
            self.restore_locked(device, known, token, is_stale=is_stale)

    def restore_locked(
        self,
        device: str,
        known: dict[str, Limiter],
        token: str,
        *,
        is_stale: bool = False,
    ) -> None:
        """Give back as ``restore`` does; the caller holds the device."""
        saved = self.read(device)
        if saved is None or saved.token != token:
            return
        if is_stale:
            recover(self, saved, known)
            return
        if saved.is_of_this_boot:  # drivers forget limits at a boot
            restore(saved, known)
        self.remove(device)


def is_for(saved: SavedState, job: Job) -> bool:
    """Say whether a limit was set for a job."""
    return (saved.job_id, saved.node) == (job.job_id, job.node)


@contextmanager
def boards_here() -> Iterator[dict[str, Limiter]]:
    """Open what limits the boards of this node: the driver, or nothing if it does not answer."""
    known: dict[str, Limiter] = {}
    try:
        known["nvidia"] = NvidiaLimiter.open()
    except NotAvailable as error:
        tell(str(error))
    try:
        yield known
    finally:
        for limiter in known.values():
            limiter.close()
