"""The prolog's watchdog: restores limits if a job ends without an epilog, as when slurmd dies.

It has no parent: the prolog ends, slurmd may be killed, and a Slurm job has no process that could
be its parent. It keeps the driver open, which without persistence mode forgets limits when its
last user closes it. It keeps no lock while it waits: the epilog needs the lock.
"""

import contextlib
import os
import select
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wattlaw.common.errors import WattlawError, one_line
from wattlaw.measure.devices.limiter import Limiters
from wattlaw.measure.limits.watchdog import READY, WatchdogProcess, detach
from wattlaw_site.node_state import SiteStateFolder, open_nvidia_limiter, remove_report
from wattlaw_site.site_job import NodeJob, SitePaths, is_over, job_steps, log

#: While no step runs, it looks for steps and for the epilog this often in a grace period.
_POLLS_PER_GRACE = 20
_MAX_POLL_S = 3.0
_MAX_STEP_WAIT_S = 60.0
_TRIES, _FIRST_WAIT_S = 8, 0.5


@dataclass(frozen=True)
class Watch:
    """What a watchdog watches: devices that were limited for a job, with the states' token."""

    paths: SitePaths
    job: NodeJob
    token: str
    devices: Sequence[str]
    grace_s: float

    def start(self) -> WatchdogProcess:
        """Start the watchdog as a process of the prolog. It begins to watch when it is closed."""
        paths, job = self.paths, self.job
        line = [sys.executable, "-I", "-m", "wattlaw_site", "watch"]
        line += [f"--config={paths.config}", f"--state={paths.state}", f"--reports={paths.reports}"]
        line += [job.job_id, job.node, self.token, str(self.grace_s), *self.devices]
        return WatchdogProcess(line)

    def run(self) -> None:
        """Leave the prolog's session, report that, and watch until the limits are restored."""
        detach()  # slurmd kills the process group of a prolog after its end
        os.chdir("/")
        with open_nvidia_limiter() as limiters:
            if not limiters:
                sys.exit("the watchdog of the limits cannot reach the driver")
            with Path(os.devnull).open("r+b") as devnull:
                os.dup2(devnull.fileno(), sys.stderr.fileno())
                with contextlib.suppress(OSError):
                    os.write(sys.stdout.fileno(), READY)
                os.dup2(devnull.fileno(), sys.stdout.fileno())
            sys.stdin.buffer.read()  # until the prolog has ended, for whatever reason
            folder = SiteStateFolder(self.paths)
            if self._job_ended_without_epilog(folder):
                self._restore(folder, limiters)

    def _job_ended_without_epilog(self, folder: SiteStateFolder) -> bool:
        """Wait until all limits are restored (False), or the job has ended without epilog (True).
        It queries Slurm only after a grace period without work: an epilog may have to wait for
        others, and slurmd may be about to restart."""
        busy_s = time.monotonic()
        while any(self._is_ours(folder, device) for device in self.devices):
            steps = job_steps(self.job.job_id)  # the container of a job, extern, has no work
            if pids := [pid for pid, step in steps.items() if step != "extern"]:
                _wait_for_end(pids[0])
                busy_s = time.monotonic()
            elif time.monotonic() - busy_s < self.grace_s:
                time.sleep(min(self.grace_s / _POLLS_PER_GRACE, _MAX_POLL_S))
            elif is_over(self.job.job_id, self.job.node):
                return True
            else:
                busy_s = time.monotonic()  # query again after another grace period
        return False

    def _is_ours(self, folder: SiteStateFolder, device: str) -> bool:
        try:
            saved = folder.read(device)
        except WattlawError:  # it is damaged; the epilog reports it
            return False
        return saved is not None and saved.token == self.token

    def _restore(self, folder: SiteStateFolder, limiters: Limiters) -> None:
        """Restore the limits, trying for two minutes; after that, a later prolog can."""
        job, left = self.job, dict.fromkeys(self.devices, "")
        for attempt in range(_TRIES):
            time.sleep(_FIRST_WAIT_S * 2**attempt if attempt else 0.0)
            for device in list(left):
                try:
                    folder.restore(device, limiters, self.token)
                    del left[device]
                except (WattlawError, OSError) as error:
                    left[device] = one_line(error)
            if not left:
                remove_report(self.paths, job.job_id, job.node)
                log(f"restored the limits of job {job.job_id}: no epilog came", is_error=False)
                return
        log(f"job {job.job_id}: limits not restored, no epilog came: {'; '.join(left.values())}")


def _wait_for_end(pid: int) -> None:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except (OSError, AttributeError):  # the kernel has no pidfd
        time.sleep(_MAX_POLL_S)
        return
    try:
        select.select([handle], [], [], _MAX_STEP_WAIT_S)
    finally:
        os.close(handle)
