"""The slots of a machine: a run that has a slot uses its GPU, or its cores, exclusively.

A slot is a lock of the machine, so that measurements of different users and campaigns do not
disturb each other. The kernel releases the slots of a process that dies.
"""

import os
import shlex
import socket
from collections.abc import Sequence

import psutil

from wattlaw.common import machine_lock
from wattlaw.common.terminal import escape_invisible
from wattlaw.common.text import collapse_whitespace
from wattlaw.running.launcher import Allocation

_MAX_SHOWN = 200


class SlotLease(dict[str, socket.socket], Allocation):
    """Slots with their locks, by name, until they are released or this process ends."""

    def release(self) -> None:
        """Release the slots; repeated calls do nothing."""
        while self:
            self.popitem()[1].close()


def acquire(names: Sequence[str], count: int) -> SlotLease | None:
    """Lock ``count`` of the named slots, in their order, or none of them.

    Raises ``NotAvailable`` if this system has no locks.
    """
    lease = SlotLease()
    for name in names:
        if len(lease) < count and (lock := machine_lock.lock(f"slot/{name}")) is not None:
            lease[name] = lock
    if len(lease) == count:
        return lease
    lease.release()
    return None


def holders(names: Sequence[str]) -> list[str]:
    """Return who else occupies the named slots: the process, its user and its command."""
    found = {machine_lock.holder(f"slot/{name}") for name in names}
    return [
        _text(*holder)
        for holder in sorted(one for one in found if one is not None)
        if holder.pid != os.getpid()
    ]


def _text(pid: int, user: str) -> str:
    if not pid:
        return f"a process of user {user}"
    try:
        command = shlex.join(psutil.Process(pid).cmdline())
    except psutil.Error:  # of another container, or hidden from this user
        command = ""
    shown = escape_invisible(collapse_whitespace(command))[:_MAX_SHOWN]
    return f"process {pid} of user {user}" + (f", {shown}" if shown else "")
