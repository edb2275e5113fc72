"""The slots of a machine: a run that has a slot uses its GPU, or its cores, exclusively.

A slot is a file that is locked (flock) while a run occupies it. All users and campaigns of a
machine share the files, so that measurements do not disturb each other. The kernel releases the
slots of a process that dies.
"""

import errno
import json
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Self

import psutil

from wattlaw.common.errors import BadInput, NotAvailable
from wattlaw.common.files import locked, locking_process
from wattlaw.common.terminal import escape_invisible
from wattlaw.common.text import collapse_whitespace, quote
from wattlaw.measure.limits.trust import user_name
from wattlaw.run.launcher import Allocation

#: An absolute folder for the slots, in place of that of the machine.
VARIABLE = "WATTLAW_SLOTS_DIR"
#: The first one where every user may add files, and nobody may replace those of others, counts.
#: No variable of a user moves it.
_FOLDERS = ("/run/lock", "/dev/shm", "/var/tmp", "/tmp")  # noqa: S108 - see above
_PREFIX = "wattlaw-slot-"
#: Root, and what a container shows for a root that it does not know (overflowuid).
_ROOT = (0, 65_534)
_OPEN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MAX_BYTES, _MAX_SHOWN = 8192, 200


class SlotLease(dict[str, BinaryIO], Allocation):
    """Locked slots with their files, by name, until they are released or this process ends."""

    def release(self) -> None:
        """Unlock the slots; repeated calls do nothing."""
        while self:
            self.popitem()[1].close()


class Slots:
    """Named slots, as files of one folder.

    ``store`` is written into the files of occupied slots, so that whoever waits can name it.
    """

    def __init__(self, folder: Path, store: Path | None = None) -> None:
        self._folder = folder
        holder = {"pid": os.getpid(), "store": store and str(store.absolute())}
        self._holder = json.dumps(holder).encode()

    @classmethod
    def of_this_machine(cls, store: Path) -> Self:
        """Return the slots that all users of this machine share.

        Raises ``NotAvailable`` if no folder can have them, and ``BadInput`` if
        ``WATTLAW_SLOTS_DIR`` is not an absolute path.
        """
        chosen = os.environ.get(VARIABLE)
        if chosen:
            folder = Path(chosen)
            if not folder.is_absolute():
                raise BadInput(f"{VARIABLE} is {quote(chosen)}; allowed: an absolute path")
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise NotAvailable(f"{folder}: {error.strerror} ({VARIABLE})") from None
            return cls(folder, store)
        for folder in map(Path, _FOLDERS):
            if _is_for_all(folder):
                return cls(folder, store)
        raise NotAvailable(
            f"no folder for the locks of this machine: none of {', '.join(_FOLDERS)} is root's "
            f"with mode 1777; set {VARIABLE} to a folder that all users of wattlaw here share"
        )

    def acquire(self, names: Sequence[str], count: int) -> SlotLease | None:
        """Lock ``count`` of the named slots, in their order, or none of them.

        Raises ``NotAvailable`` if something else is in place of the file of a slot.
        """
        lease = SlotLease()
        try:
            for name in names:
                if len(lease) == count:
                    break
                file = self._lock(self._path(name))
                if file is not None:
                    lease[name] = file
        except BaseException:
            lease.release()
            raise
        if len(lease) == count:
            return lease
        lease.release()
        return None

    def holders(self, names: Sequence[str]) -> list[str]:
        """Return who else occupies the named slots: the process, its user and its store."""
        found: dict[str, None] = {}
        for name in names:
            holder = _read_holder(self._path(name))
            pid = locking_process(self._path(name)) or holder.get("pid")
            if isinstance(pid, int) and pid != os.getpid() and psutil.pid_exists(pid):
                store = holder.get("store") if holder.get("pid") == pid else None
                found.setdefault(_holder_text(pid, store))
        return list(found)

    def _path(self, name: str) -> Path:
        return self._folder / (_PREFIX + re.sub(r"[^\w.-]", "_", name))

    def _lock(self, path: Path) -> BinaryIO | None:
        """Lock a slot, and write who occupies it; return None if it is occupied."""
        try:
            handle, is_writable = _open(path)
        except OSError as error:
            raise NotAvailable(_unusable(path, error)) from None
        try:
            # A cleaner of temporary files may have removed the file that was opened.
            is_ours = locked(handle) and os.path.samestat(os.fstat(handle), path.lstat())
            if is_ours and is_writable:
                os.ftruncate(handle, 0)
                os.pwrite(handle, self._holder, 0)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOSPC, errno.EDQUOT):
                os.close(handle)
                raise NotAvailable(_unusable(path, error)) from None
            is_ours = error.errno != errno.ENOENT  # a full disk: without a name
        if not is_ours:
            os.close(handle)
            return None
        return os.fdopen(handle, "rb")


def _is_for_all(folder: Path) -> bool:
    """Say whether a folder is as ``/tmp``; the answer is the same for every user."""
    try:
        status, flags = folder.stat(), os.statvfs(folder).f_flag
    except OSError:
        return False
    is_open = status.st_uid in _ROOT and status.st_mode & 0o1777 == 0o1777
    return stat.S_ISDIR(status.st_mode) and is_open and not flags & os.ST_RDONLY


def _open(path: Path) -> tuple[int, bool]:
    """Open the file of a slot, which is created for all users; say whether it may be written.

    A link is not followed, and a file with a second name is not written: it could be any file.
    """
    while True:
        try:
            # Not with O_CREAT: kernels may refuse that for others' files (protected_regular).
            handle = os.open(path, os.O_RDWR | _OPEN)
        except FileNotFoundError:
            try:
                handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _OPEN, 0o666)
            except FileExistsError:
                continue
            os.fchmod(handle, 0o666)  # whatever the umask
        except PermissionError:
            handle = os.open(path, os.O_RDONLY | _OPEN)
            status = os.fstat(handle)
            if stat.S_ISREG(status.st_mode):
                return handle, False
        status = os.fstat(handle)
        if stat.S_ISREG(status.st_mode):
            return handle, status.st_nlink == 1
        os.close(handle)
        raise OSError(errno.EINVAL, "not a regular file", str(path))


def _unusable(path: Path, error: OSError) -> str:
    why = "is a link" if error.errno == errno.ELOOP else error.strerror
    try:
        owner = f"; it belongs to user {user_name(path.lstat().st_uid)}"
    except OSError:
        owner = ""
    return f"{path}: cannot be the lock of a GPU or core: {why}{owner}; remove it"


def _read_holder(path: Path) -> dict[str, object]:
    """Return what the last process that occupied a slot has written; any user may write it."""
    try:
        handle = os.open(path, os.O_RDONLY | _OPEN)
        try:
            holder = json.loads(os.pread(handle, _MAX_BYTES, 0))
        finally:
            os.close(handle)
    except (OSError, ValueError, RecursionError):
        return {}
    return holder if isinstance(holder, dict) else {}


def _holder_text(pid: int, store: object) -> str:
    try:
        user = user_name(psutil.Process(pid).uids().real)
    except psutil.Error:
        user = "unknown"
    text = f"process {pid} of user {user}"
    if isinstance(store, str):
        text += f", store {escape_invisible(collapse_whitespace(store))[:_MAX_SHOWN]}"
    return text
