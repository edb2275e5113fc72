"""The watchdog: restores limits if the process that set them is gone, for whatever reason.

``python -m wattlaw.measure.limits.watchdog FOLDER TOKEN OWNER_PID DEVICE...``, with a pipe from the
owner as stdin and a pipe to it as stdout. It leaves the owner's session and process tree, so that a
signal to those does not reach it, and keeps the devices locked until it ends.
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
from typing import Any

from wattlaw.common import crash
from wattlaw.common.errors import NotAvailable
from wattlaw.measure.limits.restore import limiters_for, open_limiters, restore
from wattlaw.measure.limits.state_folder import StateFolder

READY, DONE, RESTORE = b"ready\n", b"done\n", b"restore\n"
_START_S = 60
_FIRST_WAIT_S, _LAST_WAIT_S = 0.5, 64.0


class WatchdogProcess:
    def __init__(self, line: Sequence[str], **options: Any) -> None:
        process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options)
        if process.stdin is None or process.stdout is None:
            raise AssertionError("the process has no pipes")
        self._to, self._from = process.stdin, process.stdout
        reply = self._from.readline()
        process.wait(_START_S)  # it has forked; the remaining process is not our child
        if reply != READY:
            self.close()
            raise NotAvailable("the watchdog of the limits could not be started; see above")

    def end(self, message: bytes) -> None:
        """Send ``DONE`` and wait until the watchdog has released the locks, or ``RESTORE``."""
        with contextlib.suppress(OSError, ValueError):
            self._to.write(message)
            self._to.flush()
        if message == DONE:
            self._from.read()
        self.close()

    def close(self) -> None:
        for pipe in (self._to, self._from):
            with contextlib.suppress(OSError):
                pipe.close()


def detach() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    if os.fork():
        os._exit(0)  # the parent waits for this process; the remaining one has no parent
    os.setsid()


def main() -> None:
    folder, token, owner_pid, *devices = sys.argv[1:]
    try:
        owner = [os.pidfd_open(int(owner_pid))]
    except (OSError, AttributeError):  # the system has no handles of processes
        owner = []
    is_orphan = os.getppid() != int(owner_pid)  # then nothing is limited yet
    detach()
    # A driver without persistence mode forgets limits when its last user closes it. Keep it open.
    with open_limiters() as limiters:
        if missing := [device for device in devices if not limiters_for(device, limiters)]:
            sys.exit(f"the watchdog of the limits cannot reach {', '.join(missing)}")
        with Path(os.devnull).open("wb") as devnull:  # so that no reader of stderr waits
            os.dup2(devnull.fileno(), sys.stderr.fileno())
        with contextlib.suppress(OSError):
            os.write(sys.stdout.fileno(), READY)
        is_done, pipe = False, sys.stdin.fileno()
        if not is_orphan:  # wait until the owner ends or says that it has restored everything
            # A child that it has forked may keep the pipe open, so the owner is watched, too.
            ready, _, _ = select.select([pipe, *owner], [], [])
            is_done = pipe in ready and os.read(pipe, len(RESTORE)) == DONE
    wait_s, left, states = _FIRST_WAIT_S, [] if is_done else devices, StateFolder(Path(folder))
    # For two minutes: after that 'wattlaw limits restore' can restore them, and needs the locks.
    while left and (left := _try_restore(states, token, left)) and wait_s <= _LAST_WAIT_S:
        time.sleep(wait_s)
        wait_s *= 2


def _try_restore(folder: StateFolder, token: str, devices: Sequence[str]) -> list[str]:
    left = []
    with open_limiters() as limiters:
        for device in devices:
            try:
                saved = folder.read(device)
                if saved is not None and saved.token == token:
                    restore(saved, limiters)
                if saved is None or saved.token == token:
                    folder.remove(device)
            except Exception:  # whatever it is, the other devices are restored
                left.append(device)
    return left


if __name__ == "__main__":
    sys.exit(crash.run(main))
