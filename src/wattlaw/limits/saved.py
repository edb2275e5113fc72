"""What was there before a limit was set: one file per device, on disk before anything is changed.

The folder is one for all users of a machine (``/var/tmp/wattlaw-limits``, or
``WATTLAW_LIMITS_DIR``), sticky as ``/tmp`` is. A device's lock file says who may limit it.
"""

import contextlib
import fcntl
import os
import re
import socket
import stat
import tempfile
import time
from datetime import datetime
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict, ValidationError

from wattlaw.errors import BadInput, NotAvailable

VARIABLE = "WATTLAW_LIMITS_DIR"
_FOLDER = "/var/tmp/wattlaw-limits"  # noqa: S108 - it must be one for all users
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
#: In a folder for all users anybody may put a link or a pipe where a file is expected.
_SAFELY = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
#: Whoever looks at a lock holds it for a moment.
_LOCK_WAITS_S = (0.0, 0.01, 0.05)


class Saved(BaseModel):
    """The state of one device before it was limited, and who limited it."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    device: str
    host: str
    power_limit_w: float | None  # None: not changed
    set_w: float | None  # what it was changed to
    unlock_clock: bool  # the clock was locked; before, as the user stated, it was not
    token: str  # of the owner that wrote it
    owner_pid: int
    user: str
    made_at: datetime
    boot_id: str | None
    kept: bool = False  # set by hand, to stay until it is given back by hand
    job_id: str | None = None  # set by a Slurm prolog, for this job
    node: str | None = None  # this machine's name in that Slurm

    @property
    def is_of_this_boot(self) -> bool:
        """Say whether the machine is still up since; drivers forget limits at a boot."""
        return self.boot_id == boot_id()

    @property
    def is_in_use(self) -> bool:
        """Say whether another process that lives set it: the lock may have been removed."""
        if self.kept or self.owner_pid == os.getpid() or self.host != socket.gethostname():
            return False  # pids of another container mean nothing here
        try:
            began_s = psutil.Process(self.owner_pid).create_time()
        except psutil.Error:
            return False
        return began_s <= self.made_at.timestamp() and self.is_of_this_boot

    @property
    def is_of_this_host(self) -> bool:
        """Say whether it is about this machine; a folder may be on a shared file system.

        Containers of one machine have names of their own, and its boot.
        """
        is_up_since = self.boot_id is not None and self.is_of_this_boot
        return is_up_since or self.host == socket.gethostname()


def boot_id() -> str | None:
    """Return what tells this boot of the machine from others, where the system tells it."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return None


class SaveFolder:
    """The folder of saved states and locks."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = (path or Path(os.environ.get(VARIABLE) or _FOLDER)).absolute()

    def create(self) -> None:
        """Make the folder, for all users of the machine.

        Raises
        ------
        NotAvailable
            It cannot be made, or is not one to be trusted.
        """
        try:
            self.path.mkdir(parents=True)
            self.path.chmod(0o1777)
        except FileExistsError:
            self.check()
        except OSError as error:
            told = f"{self.path}: cannot be made: {error.strerror}; set {VARIABLE}"
            raise NotAvailable(told) from None

    def check(self) -> None:
        """Raise ``NotAvailable`` unless it is a folder in which nobody replaces others' files."""
        found = self.path.lstat()
        if not stat.S_ISDIR(found.st_mode):
            raise NotAvailable(f"{self.path}: is no folder; set {VARIABLE}")
        if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
            told = f"{self.path}: anybody may remove files there; chmod +t it, or set {VARIABLE}"
            raise NotAvailable(told)

    def lock(self, device: str) -> int | None:
        """Return an open file that holds a device's lock, None while another process has it.

        The lock is held until every copy of the open file is closed, so a watchdog that has
        inherited it keeps the device when its owner dies.

        Raises
        ------
        NotAvailable
            The lock file cannot be opened.
        """
        path = self._file(device, "lock")
        for wait_s in _LOCK_WAITS_S:
            time.sleep(wait_s)
            handle = self._open_lock(path)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(handle), path.stat()):
                    return handle
            except (BlockingIOError, FileNotFoundError):
                pass  # another's, or removed by a cleaner since it was opened
            except OSError as error:
                os.close(handle)
                told = f"{path}: cannot be locked: {error.strerror}; set {VARIABLE}"
                raise NotAvailable(told) from None
            os.close(handle)
        return None

    def is_locked(self, device: str) -> bool:
        """Say whether some process holds a device's lock."""
        try:
            handle = os.open(self._file(device, "lock"), _SAFELY)
        except OSError:
            return False  # nobody can hold it
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
        return False

    def write(self, saved: Saved) -> None:
        """Put a state on disk; when this returns, it survives the loss of power."""
        path = self._file(saved.device, "json")
        # Made beside it and put in its place: a link that somebody put there is not followed.
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=self.path)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(saved.model_dump_json(indent=1) + "\n")
                file.flush()
                os.fchmod(handle, 0o644)  # whatever the umask: others read it, and only read it
                os.fsync(handle)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def read(self, device: str) -> Saved | None:
        """Return the saved state of a device, or None.

        Raises
        ------
        BadInput
            There is a file, but it cannot be understood.
        """
        return self._read(self._file(device, "json"))

    def is_ours(self, device: str) -> bool:
        """Say whether we wrote a saved state: in a shared folder anybody can put one."""
        try:
            return self._file(device, "json").lstat().st_uid == os.geteuid()
        except OSError:
            return False

    def all(self) -> list[Saved]:
        """Return every saved state that can be understood."""
        return self._all()[0]

    def damaged(self) -> list[str]:
        """Return, in words for the user, which files cannot be understood."""
        return self._all()[1]

    def remove(self, device: str) -> None:
        """Forget a state: it has been given back. Also one of which only a part was written."""
        path = self._file(device, "json")
        for part in self.path.glob(f".{path.name}.*"):
            with contextlib.suppress(OSError):
                part.unlink()
        path.unlink(missing_ok=True)

    def _file(self, device: str, kind: str) -> Path:
        return self.path / f"{re.sub(r'[^A-Za-z0-9._-]', '_', device)}.{kind}"

    def _all(self) -> tuple[list[Saved], list[str]]:
        found, damaged = [], []
        for path in sorted(self.path.glob("*.json")):
            try:
                saved = self._read(path)
            except BadInput as error:  # it hides no other
                damaged.append(str(error))
            else:
                found += [saved] if saved is not None else []
        return found, damaged

    def _read(self, path: Path) -> Saved | None:
        try:
            handle = os.open(path, _SAFELY)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise BadInput(f"{path}: cannot be read: {error.strerror}") from None
        try:
            with os.fdopen(handle, encoding="utf-8") as file:
                saved = Saved.model_validate_json(file.read())
        except (ValidationError, UnicodeDecodeError, OSError):
            saved = None
        is_fit = saved is not None and f"{saved.device}{saved.user}{saved.host}".isprintable()
        if saved is None or not is_fit or self._file(saved.device, "json") != path:
            told = f"{path}: not a saved limit; look at the limit of that device, then remove it"
            raise BadInput(told)
        return saved

    def _open_lock(self, path: Path) -> int:
        # Not created by opening: in a sticky folder Linux refuses that for another user's file.
        try:
            for flags in (0, os.O_CREAT | os.O_EXCL, 0):
                with contextlib.suppress(FileNotFoundError, FileExistsError):
                    return os.open(path, _SAFELY | flags, 0o644)
        except OSError as error:
            told = f"{path}: cannot be opened: {error.strerror}; set {VARIABLE}"
            raise NotAvailable(told) from None
        raise NotAvailable(f"{path}: cannot be opened; set {VARIABLE}")
