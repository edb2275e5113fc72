"""The files of the hooks on a node: previous limits, for root only, and reports to jobs."""

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager

from wattlaw.common.errors import NotAvailable
from wattlaw.common.files import write_text
from wattlaw.measure.devices.limiter import Limiters
from wattlaw.measure.devices.nvidia.nvidia_limiter import NvidiaLimiter
from wattlaw.measure.limits.prolog_limits import PrologReport
from wattlaw.measure.limits.restore import recover, restore
from wattlaw.measure.limits.state_folder import SavedState, StateFolder, check_only_root_writes
from wattlaw_site.site_job import SitePaths, log

#: Another prolog, epilog or watchdog locks a GPU for as long as the driver takes.
_LOCK_WAIT_S = 30.0


def write_report(paths: SitePaths, report: PrologReport) -> None:
    """Write a job's report; ``NotAvailable`` if users other than root may write there."""
    paths.reports.mkdir(mode=0o755, parents=True, exist_ok=True)
    check_only_root_writes(paths.reports)
    text = report.model_dump_json(indent=1) + "\n"
    write_text(paths.report(report.job_id, report.node), text, durable=False)


def remove_report(paths: SitePaths, job_id: str, node: str) -> None:
    path = paths.report(job_id, node)
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log(f"{path}: cannot be removed: {error.strerror}")


class SiteStateFolder(StateFolder):
    """The folder of previous limits, which only root may write, with locks that only root has: any
    user can take a lock of the machine, and so could stop a prolog or epilog."""

    advice = ""

    def __init__(self, paths: SitePaths) -> None:
        super().__init__(paths.state)

    def lock(self, device: str) -> list[int] | None:
        file = self.lock_file(device)
        return None if file is None else [file]

    def of_this_host(self) -> list[SavedState]:
        return [saved for saved in self.survey()[0] if saved.is_for_this_host]

    @contextmanager
    def locked(self, devices: Iterable[str]) -> Iterator[None]:
        """Lock devices for this hook; raises ``NotAvailable`` if another hook keeps one locked."""
        end_s = time.monotonic() + _LOCK_WAIT_S
        with ExitStack() as locks:
            for device in sorted(set(devices)):
                while (files := self.lock(device)) is None:
                    if time.monotonic() > end_s:
                        raise NotAvailable(f"{device}: another prolog or epilog is changing it")
                    time.sleep(0.1)
                for file in files:
                    locks.callback(os.close, file)
            yield

    def restore(
        self, device: str, limiters: Limiters, token: str, *, is_stale: bool = False
    ) -> None:
        """Restore a device if its saved state has this token, and remove the saved state. The job
        of a stale one may have ended long ago: a limit that was set since then stays. Raises
        ``WattlawError`` if that fails; the saved state stays."""
        with self.locked([device]):
            self.restore_locked(device, limiters, token, is_stale=is_stale)

    def restore_locked(
        self, device: str, limiters: Limiters, token: str, *, is_stale: bool = False
    ) -> None:
        saved = self.read(device)
        if saved is None or saved.token != token:
            return
        if is_stale:
            recover(self, saved, limiters)
            return
        if saved.is_from_this_boot:  # drivers forget limits at a boot
            restore(saved, limiters)
        self.remove(device)


@contextmanager
def open_nvidia_limiter() -> Iterator[Limiters]:
    """Open the NVIDIA limiter; give no limiter if the driver does not answer."""
    limiters: Limiters = {}
    with ExitStack() as stack:
        try:
            limiters["nvidia"] = stack.enter_context(closing(NvidiaLimiter.open()))
        except NotAvailable as error:
            log(str(error))
        yield limiters
