"""The prolog's watchdog: gives back when a job has gone without an epilog, as when slurmd died.

It belongs to nobody: the prolog ends, slurmd may be killed, and Slurm's job has no process that we
could be a child of. It keeps the driver open, which without persistence mode forgets limits when
its last user closes it, and holds no lock while it waits: the epilog needs that.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from wattlaw.devices.limiter import Limiter
from wattlaw.errors import NotAvailable, WattlawError, one_line
from wattlaw.limits.site.job import Job, Place, is_over, tell, working
from wattlaw.limits.site.state import SiteStates, boards_here, remove_report

READY = b"ready\n"
_START_S = 60
#: How many times in a grace it looks for steps and for the epilog, when no step works.
_LOOKS = 20
_LONGEST_LOOK_S = 3.0
_STEP_LOOK_S = 60.0
_TRIES, _FIRST_WAIT_S = 8, 0.5


class Watchdog:
    """A watchdog that has been started, from its prolog's side."""

    def __init__(
        self, place: Place, job: Job, token: str, devices: Sequence[str], grace_s: float
    ) -> None:
        line = [sys.executable, "-I", "-m", "wattlaw.limits.site", "watch"]
        line += [f"--config={place.config}", f"--state={place.state}", f"--reports={place.reports}"]
        line += [job.job_id, job.node, token, str(grace_s), *devices]
        process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if process.stdin is None or process.stdout is None:
            raise AssertionError("pipes were asked for")
        self._to, self._from = process.stdin, process.stdout
        said = self._from.readline()
        process.wait(_START_S)  # it has forked; the one that stays is not our child
        if said != READY:
            self.leave()
            raise NotAvailable("the watchdog of the limits could not be started; see above")

    def leave(self) -> None:
        """Let it begin to watch: the prolog has done what it had to."""
        for pipe in (self._to, self._from):
            with contextlib.suppress(OSError):
                pipe.close()


def run(place: Place, job: Job, token: str, devices: Sequence[str], grace_s: float) -> None:
    """Leave the prolog's session, say so, and watch until the boards are as before."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    if os.fork():
        os._exit(0)  # the prolog waits for this process
    os.setsid()  # slurmd kills the group of a prolog when that has ended
    os.chdir("/")
    with boards_here() as known:
        if not known:
            sys.exit("the watchdog of the limits cannot reach the driver")
        with Path(os.devnull).open("r+b") as nowhere:
            os.dup2(nowhere.fileno(), sys.stderr.fileno())
            with contextlib.suppress(OSError):
                os.write(sys.stdout.fileno(), READY)
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        sys.stdin.buffer.read()  # until the prolog has ended, however it did
        if _waits_in_vain(place, job, token, devices, grace_s):
            _restore(place, job, token, devices, known)


def _waits_in_vain(
    place: Place, job: Job, token: str, devices: Sequence[str], grace_s: float
) -> bool:
    """Wait until all is given back (False), or the job has gone and no epilog came (True).

    Before Slurm is asked, the job must have been without work for a grace: its epilog may have to
    wait for others, and slurmd may be about to be started again.
    """
    folder, busy_s = SiteStates(place), time.monotonic()
    while any(_is_ours(folder, device, token) for device in devices):
        if pids := working(job.job_id):
            _wait_for_end(pids[0])
            busy_s = time.monotonic()
        elif time.monotonic() - busy_s < grace_s:
            time.sleep(min(grace_s / _LOOKS, _LONGEST_LOOK_S))
        elif is_over(job.job_id, job.node):
            return True
        else:
            busy_s = time.monotonic()  # asked again after another one
    return False


def _is_ours(folder: SiteStates, device: str, token: str) -> bool:
    try:
        saved = folder.read(device)
    except WattlawError:  # it is damaged; the epilog tells
        return False
    return saved is not None and saved.token == token


def _wait_for_end(pid: int) -> None:
    """Wait for a process to end, for a minute at most, without using the processor."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except (OSError, AttributeError):  # an old kernel
        time.sleep(_LONGEST_LOOK_S)
        return
    try:
        select.select([handle], [], [], _STEP_LOOK_S)
    finally:
        os.close(handle)


def _restore(
    place: Place, job: Job, token: str, devices: Sequence[str], known: dict[str, Limiter]
) -> None:
    """Give back, trying for two minutes; after that it is left to a later prolog or to restore."""
    folder, left, reasons = SiteStates(place), list(devices), [""]
    for turn in range(_TRIES):
        time.sleep(_FIRST_WAIT_S * 2**turn if turn else 0.0)
        reasons = []
        for device in list(left):
            try:
                folder.restore(device, known, token)
                left.remove(device)
            except (WattlawError, OSError) as error:
                reasons.append(one_line(error))
        if not reasons:
            remove_report(place, job.job_id, job.node)
            tell(f"gave back the limits of job {job.job_id}: no epilog came", is_wrong=False)
            return
    tell(f"job {job.job_id}: not given back, no epilog came: {'; '.join(reasons)}")
