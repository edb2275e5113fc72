"""Locks of this machine, which all its users share without a folder that all of them may write.

A lock is a Unix socket that listens at an abstract address (unix(7)). The kernel gives an address
to one socket, says which process listens there, and frees the address when the last copy of the
socket is closed, however its processes end. So a watchdog that inherits a lock keeps it.

Abstract addresses belong to a network namespace. Containers that use the host's network, such as
those of Apptainer, share its locks. A container with a network of its own, such as Docker's
default, has locks of its own; ``docker run --network host`` shares the host's.
"""

import errno
import hashlib
import os
import pwd
import socket
import struct
from typing import NamedTuple

from wattlaw.common.errors import NotAvailable

#: Other locks than those of the machine, such as for tests. Its value is part of every address.
VARIABLE = "WATTLAW_LOCKS"
#: The longest address, without the zero byte before it.
_MAX_BYTES = 107
#: How often others may ask who has a lock; an answer is kept until the lock is released.
_MAX_QUESTIONS = 4096


class Holder(NamedTuple):
    """Who has a lock. The pid is 0 if the process belongs to a container that is hidden here."""

    pid: int
    user: str


def lock(name: str) -> socket.socket | None:
    """Lock a name; return the lock, None if another process has it.

    It is released when the socket is closed, in this process and in all that inherited it. Raises
    ``NotAvailable`` if this system has no such locks.
    """
    made = socket.socket(socket.AF_UNIX)
    try:
        made.bind(_address(name))
        made.listen(_MAX_QUESTIONS)
    except OSError as error:
        made.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise NotAvailable(f"{name}: this machine cannot lock it: {error.strerror}") from None
    return made


def holder(name: str) -> Holder | None:
    with socket.socket(socket.AF_UNIX) as question:
        question.setblocking(False)
        try:
            question.connect(_address(name))
        except BlockingIOError:  # it has been asked too often
            return Holder(0, "unknown")
        except OSError:
            return None
        told = question.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("iII"))
    pid, uid, _ = struct.unpack("iII", told)
    return Holder(pid, user_name(uid))


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _address(name: str) -> bytes:
    address = os.fsencode(f"{os.environ.get(VARIABLE) or 'wattlaw'}/{name}")
    if len(address) > _MAX_BYTES:
        address = b"wattlaw/" + hashlib.sha256(address).hexdigest().encode()
    return b"\0" + address
