"""The watchdog: gives limits back when the process that set them is gone, however it went.

``python -m wattlaw.limits.watchdog FOLDER TOKEN OWNER_PID DEVICE...``, with a pipe from the owner
as stdin and a pipe to it as stdout. It leaves the owner's session and process tree, so that a
signal to those does not reach it, and holds the devices' locks until it is done.
"""

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from wattlaw import crash
from wattlaw.limits.restore import limiters, restore, that_have
from wattlaw.limits.state_folder import StateFolder

READY, DONE, YOURS = b"ready\n", b"done\n", b"yours\n"
_FIRST_WAIT_S, _LAST_WAIT_S = 0.5, 64.0


def main() -> None:
    """Watch, and give back if need be."""
    folder, token, owner_pid, *devices = sys.argv[1:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    owner = _opened(int(owner_pid))
    is_orphan = os.getppid() != int(owner_pid)  # then nothing is limited yet
    if os.fork():
        os._exit(0)  # the owner waits for this process; the one that stays is nobody's child
    os.setsid()
    # A driver without persistence forgets limits when its last user closes it: this is one.
    with limiters() as known:
        if lacking := [device for device in devices if not that_have(device, known)]:
            sys.exit(f"the watchdog of the limits cannot reach {', '.join(lacking)}")
        with Path(os.devnull).open("wb") as nowhere:  # nobody shall wait for us to close stderr
            os.dup2(nowhere.fileno(), sys.stderr.fileno())
        with contextlib.suppress(OSError):
            os.write(sys.stdout.fileno(), READY)
        is_done = not is_orphan and _told_done(owner)
    if not is_done:
        _restore(StateFolder(Path(folder)), token, devices)


def _opened(pid: int) -> int | None:
    """Return what can be waited on for a process to end, where the system has that."""
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):
        return None


def _told_done(owner: int | None) -> bool:
    """Wait until the owner says that all is given back, or leaves it to us, or is gone."""
    pipe = sys.stdin.fileno()
    # A child that the owner has forked may hold the pipe open, so the owner is watched too.
    waiting = [pipe] if owner is None else [pipe, owner]
    ready, _, _ = select.select(waiting, [], [])
    return pipe in ready and os.read(pipe, len(YOURS)) == DONE


def _restore(folder: StateFolder, token: str, devices: Sequence[str]) -> None:
    """Give back what this owner has saved, trying for two minutes.

    After that the saved state is left to 'wattlaw limits restore', which needs the locks.
    """
    wait_s, left = _FIRST_WAIT_S, devices
    while left := _not_restored(folder, token, left):
        if wait_s > _LAST_WAIT_S:
            return
        time.sleep(wait_s)
        wait_s *= 2


def _not_restored(folder: StateFolder, token: str, devices: Sequence[str]) -> list[str]:
    left = []
    with limiters() as known:
        for device in devices:
            try:
                saved = folder.read(device)
                if saved is not None and saved.token == token:
                    restore(saved, known)
                if saved is None or saved.token == token:
                    folder.remove(device)
            except Exception:  # whatever it is, the other devices are given back
                left.append(device)
    return left


if __name__ == "__main__":
    sys.exit(crash.run(main))
