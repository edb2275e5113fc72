"""What was there before a limit was set: one file per device, on disk before anything is changed.

The folder is one for all users of a machine (``/var/tmp/wattlaw-limits``, or
``WATTLAW_LIMITS_DIR``), sticky as ``/tmp`` is. Where root has not made it, each user has a private
one (``/var/tmp/wattlaw-limits-UID``). A device's lock file says who may limit it.

Anybody may put anything into a shared folder. So only states of root and of our own user count;
files of other users are reported, and neither followed nor obeyed.
"""

import contextlib
import fcntl
import os
import re
import secrets
import socket
import stat
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    model_validator,
)

from wattlaw.errors import BadInput, NotAvailable, shown
from wattlaw.limits.trust import SAFELY, only_root_writes, read_small, user_name
from wattlaw.store.files import locked_temporary

VARIABLE = "WATTLAW_LIMITS_DIR"
_FOLDER = "/var/tmp/wattlaw-limits"  # noqa: S108 - it must be one for all users
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_LOCKS = Path("/proc/locks")
#: Whoever looks at a lock holds it for a moment.
_LOCK_WAITS_S = (0.0, 0.01, 0.05)
#: A saved state takes about 500 bytes.
_MOST_BYTES = 16_384
#: How many files of other users are opened; further ones are only counted.
_MOST_FOREIGN = 64


class Saved(BaseModel):
    """The state of one device before it was limited, and who limited it."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    device: str
    host: str
    power_limit_w: float | None  # None: not changed
    set_w: float | None  # what it was changed to
    unlock_clock: bool  # the clock was locked; before, as the user stated, it was not
    token: str  # of the owner that wrote it
    owner_pid: int = Field(ge=0, lt=2**31)
    user: str
    made_at: AwareDatetime
    boot_id: str | None
    kept: bool = False  # set by hand, to stay until it is given back by hand
    job_id: str | None = None  # set by a Slurm prolog, for this job
    node: str | None = None  # this machine's name in that Slurm

    #: Where it was read, and whose file it is; a state that we have just made has neither.
    _path: Path | None = PrivateAttr(None)
    _uid: int | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _is_whole(self) -> "Saved":
        if (self.power_limit_w is None) != (self.set_w is None):
            raise ValueError("power_limit_w and set_w are given both or not at all")
        return self

    @property
    def is_ours(self) -> bool:
        """Say whether our user wrote it."""
        return self._uid in (None, os.geteuid())

    @property
    def is_foreign(self) -> bool:
        """Say whether neither root nor our user wrote it."""
        return self._uid not in (None, 0, os.geteuid())

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
            process = psutil.Process(self.owner_pid)
            began_s, uid = process.create_time(), process.uids().effective
        except psutil.Error:
            return False
        is_its_owners = self._uid in (None, uid)
        return is_its_owners and began_s <= self.made_at.timestamp() and self.is_of_this_boot

    @property
    def is_of_this_host(self) -> bool:
        """Say whether it is about this machine; a folder may be on a shared file system.

        Containers of one machine have names of their own, and its boot.
        """
        is_up_since = self.boot_id is not None and self.is_of_this_boot
        return is_up_since or self.host == socket.gethostname()


@dataclass(frozen=True)
class Survey:
    """What lies in the folder of saved states."""

    states: list[Saved]
    #: Files of root or our user that cannot be understood, in words for the user.
    damaged: list[str]
    #: The same about files of other users, a line for each user: they stop nobody.
    ignored: list[str]


def boot_id() -> str | None:
    """Return what tells this boot of the machine from others, where the system tells it."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return None


class SaveFolder:
    """The folder of saved states and locks."""

    def __init__(self, path: Path | None = None) -> None:
        given = path or os.environ.get(VARIABLE)
        if given and not Path(given).is_absolute():
            raise BadInput(f"{VARIABLE}: given {shown(str(given))}; allowed: an absolute path")
        place = Path(given or _usual_folder()).absolute()
        # A link above it cannot be changed any more once its target has been checked.
        self.path = Path(os.path.realpath(place.parent)) / place.name
        self._is_usual = not given

    def create(self) -> None:
        """Make the folder: root for all users of the machine, another user for himself.

        Raises
        ------
        NotAvailable
            It cannot be made, or is not one to be trusted.
        """
        try:
            if self._is_usual and os.geteuid() == 0:
                self._put_folder_aside()
            if not self.exists():
                above = next(one for one in self.path.parents if os.path.lexists(one))
                only_root_writes(above, or_sticky=True)  # else chmod could be led elsewhere
                self.path.mkdir(mode=0o700, parents=True)
                self.path.chmod(0o1777 if os.geteuid() == 0 else 0o755)
        except FileExistsError:
            pass
        except NotAvailable as error:
            raise NotAvailable(f"{self.path}: cannot be made: {error}; set {VARIABLE}") from None
        except OSError as error:
            told = f"{self.path}: cannot be made: {error.strerror}; set {VARIABLE}"
            raise NotAvailable(told) from None
        self.check()

    def _put_folder_aside(self) -> None:
        """Rename, as root, a usual folder of another user to the private one of that user."""
        uid = _owner(self.path)
        if uid in (None, 0):
            return
        private = Path(f"{self.path}-{uid}")
        if os.path.lexists(private):
            private = Path(f"{self.path}.{secrets.token_hex(8)}")
        self.path.rename(private)

    def check(self) -> None:
        """Raise ``NotAvailable`` unless it is a folder in which nobody replaces others' files."""
        try:
            if not stat.S_ISDIR(self.path.lstat().st_mode):
                raise NotAvailable(f"{self.path} is not a folder")
            only_root_writes(self.path, or_sticky=True)
        except NotAvailable as error:
            told = f"ask root to run 'mv {self.path} {self.path}.old; mkdir -m 1777 {self.path}'"
            raise NotAvailable(f"{error}; {told}, or set {VARIABLE}") from None
        except OSError as error:
            raise NotAvailable(f"{self.path}: {error.strerror}; set {VARIABLE}") from None

    def exists(self) -> bool:
        """Say whether there is something at its path, be it a folder or not."""
        return os.path.lexists(self.path)

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
                is_there = os.path.samestat(os.fstat(handle), path.lstat())
                # Each takes its own lock first, so of two that come at once none sees nothing.
                if is_there and not any(other.is_locked(device) for other in self._others()):
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
            handle = os.open(self._file(device, "lock"), SAFELY)
        except OSError:
            return False  # nobody can hold it
        try:
            if stat.S_ISREG(os.fstat(handle).st_mode):
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # a file system without locks
            return False
        finally:
            os.close(handle)
        return False

    def is_held(self, device: str) -> bool:
        """Say whether some process holds a device's lock, here or in another user's folder."""
        return any(folder.is_locked(device) for folder in (self, *self._others()))

    def holder(self, device: str) -> str | None:
        """Return who holds a device's lock as ``pid 123 (ada)``, None where nobody tells."""
        for folder in (self, *self._others()):
            try:
                found = folder._file(device, "lock").lstat()
                locks = _LOCKS.read_text(encoding="ascii").splitlines()
            except (OSError, UnicodeDecodeError):
                continue
            major, minor = os.major(found.st_dev), os.minor(found.st_dev)
            name = f"{major:02x}:{minor:02x}:{found.st_ino}"
            for words in map(str.split, locks):
                if len(words) > 5 and words[1] == "FLOCK" and words[5] == name:
                    return _process_name(int(words[4]))
        return None

    def write(self, saved: Saved) -> None:
        """Put a state on disk; when this returns, it survives the loss of power.

        Raises
        ------
        NotAvailable
            It cannot be written.
        """
        path, second = self._state_files(saved)
        if _owner(path) not in (None, os.geteuid()):
            path = second
        try:
            self._write(path, saved.model_dump_json(indent=1) + "\n")
        except OSError as error:
            told = f"{path}: cannot be written: {error.strerror}"
            raise NotAvailable(f"{told}; no limit was set") from None

    def _write(self, path: Path, text: str) -> None:
        # Made beside it and put in its place: a link that somebody put there is not followed.
        handle, temporary = locked_temporary(path)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fchmod(handle, 0o644)  # whatever the umask: others read it, and only read it
                os.fsync(handle)
                temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def read(self, device: str) -> Saved | None:
        """Return our saved state of a device, or else root's, or None.

        Raises
        ------
        BadInput
            There is a file, but it cannot be understood.
        """
        return next((one for one in self.states(device) if not one.is_foreign), None)

    def read_again(self, saved: Saved) -> Saved | None:
        """Return what is saved now where a state was read; raises as ``read`` does."""
        return None if saved._path is None else self._read(saved._path)

    def states(self, device: str) -> list[Saved]:
        """Return the saved states of a device: ours, root's, other users'.

        Raises
        ------
        BadInput
            A file of ours or of root's cannot be understood.
        """
        found = self._survey(device)
        if found.damaged:
            raise BadInput("; ".join(found.damaged))
        return sorted(found.states, key=lambda one: (one.is_foreign, not one.is_ours))

    def survey(self) -> Survey:
        """Read all that is there; raises as ``check`` does where there is a folder."""
        if self.exists():
            self.check()
        return self._survey(None)

    def all(self) -> list[Saved]:
        """Return every saved state that can be understood."""
        return self.survey().states

    def damaged(self) -> list[str]:
        """Return, in words for the user, which files of ours or root's cannot be understood."""
        return self.survey().damaged

    def remove(self, device: str) -> None:
        """Forget our state: it has been given back. Also one of which only a part was written."""
        for path in self._entries(device):
            if _owner(path) == os.geteuid():
                path.unlink(missing_ok=True)
        for part in self.path.glob(f".{self._file(device, 'json').name}.*"):
            with contextlib.suppress(OSError):
                part.unlink()

    def forget(self, saved: Saved) -> None:
        """Remove the file that a state was read from."""
        if saved.is_ours:
            self.remove(saved.device)
        elif saved._path is not None:
            saved._path.unlink(missing_ok=True)

    def _file(self, device: str, kind: str) -> Path:
        return self.path / f"{_plain(device)}.{kind}"

    def _state_files(self, saved: Saved) -> tuple[Path, Path]:
        """Return where a state is put, and where if another user's file is there already.

        Nobody can know the second name beforehand.
        """
        path = self._file(saved.device, "json")
        return path, path.with_name(f"{path.stem}+{_plain(saved.token)}.json")

    def _others(self) -> Iterator["SaveFolder"]:
        """Yield the usual folders of root and of other users: a lock there counts, too."""
        if not self._is_usual:
            return
        usual = Path(_FOLDER)
        for path in [usual, *usual.parent.glob(f"{usual.name}-*")]:
            uid = path.name.removeprefix(usual.name).removeprefix("-") or "0"
            if path.name != self.path.name and _is_folder_of(path, uid):
                yield SaveFolder(path)

    def _entries(self, device: str | None) -> list[Path]:
        """Return the paths of what lies there: of one device the states, else all but locks."""
        name = None if device is None else self._file(device, "json").stem
        try:
            found = sorted(self.path.glob("[!.]*.json"))
        except OSError:
            return []
        if name is None:
            return found
        return [p for p in found if p.name == f"{name}.json" or p.name.startswith(f"{name}+")]

    def _survey(self, device: str | None) -> Survey:
        found = Survey([], [], [])
        ignored: Counter[int] = Counter()
        reasons: dict[int, str] = {}
        opened = 0
        for path in self._entries(device):
            uid = _owner(path)
            if uid is None:
                continue
            is_foreign = uid not in (0, os.geteuid())
            opened += is_foreign
            try:
                if opened > _MOST_FOREIGN and is_foreign:
                    raise BadInput(f"{path}: one of more than {_MOST_FOREIGN} files")
                saved = self._read(path)
            except BadInput as error:  # it hides no other
                reason = str(error) if str(error).isprintable() else ascii(str(error))
                if is_foreign or _has_links(path):
                    ignored[uid] += 1
                    reasons.setdefault(uid, reason)
                else:
                    told = "check the limit of that device, then remove this file"
                    found.damaged.append(f"{reason}; {told}")
            else:
                found.states.extend([saved] if saved is not None else [])
        for uid, count in ignored.items():
            more = f", and {count - 1} more" if count > 1 else ""
            who = user_name(uid)
            told = f"belongs to user {who} and is ignored; {who} or root can remove it"
            found.ignored.append(f"{reasons[uid]}{more}; it {told}")
        return found

    def _read(self, path: Path) -> Saved | None:
        found = read_small(path, _MOST_BYTES)
        if found is None:
            return None
        content, status = found
        try:
            saved = Saved.model_validate_json(content)
        except ValidationError:
            saved = None
        is_fit = saved is not None and f"{saved.device}{saved.user}{saved.host}".isprintable()
        if saved is None or not is_fit or path not in self._state_files(saved):
            raise BadInput(f"{path}: not a saved limit")
        saved._path, saved._uid = path, status.st_uid
        if saved.is_foreign:  # whatever it says
            saved = saved.model_copy(update={"user": user_name(status.st_uid)})
        return saved

    def _open_lock(self, path: Path) -> int:
        # Not created by opening: in a sticky folder Linux refuses that for another user's file.
        reason = "it comes and goes"
        for flags in (0, os.O_CREAT | os.O_EXCL, 0):
            try:
                handle = os.open(path, SAFELY | flags, 0o644)
            except (FileNotFoundError, FileExistsError):
                continue
            except OSError as error:
                reason = error.strerror or str(error)
            else:
                if stat.S_ISREG(os.fstat(handle).st_mode):
                    if flags:  # we made it; whatever the umask, every user can take the lock
                        os.fchmod(handle, 0o644)
                    return handle
                os.close(handle)
                reason = "not a regular file"
            if not self._put_aside(path):
                break
        uid = _owner(path)
        told = f"{path}: cannot be opened: {reason}"
        if uid not in (None, os.geteuid()):
            told += f"; it belongs to user {user_name(uid)}, and root can remove it"
        raise NotAvailable(f"{told}, or set {VARIABLE}")

    def _put_aside(self, path: Path) -> bool:
        """Rename, as root, what another user has put in place of a lock file; say whether."""
        if os.geteuid() != 0 or _owner(path) == 0:
            return False
        try:
            if not stat.S_ISREG(path.lstat().st_mode):
                path.rename(path.with_name(f"{path.name}.{secrets.token_hex(8)}.json"))
                return True
        except OSError:
            pass
        return False


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", text)


def _usual_folder() -> str:
    """Return the folder for all users, or our private one where root has not made that."""
    private = f"{_FOLDER}-{os.geteuid()}"
    has_private = _owner(Path(private)) == os.geteuid()
    if os.geteuid() == 0 or (_owner(Path(_FOLDER)) == 0 and not has_private):
        return _FOLDER
    return private


def _owner(path: Path) -> int | None:
    """Return the user id of the owner of what lies at a path, None where nothing does."""
    try:
        return path.lstat().st_uid
    except OSError:
        return None


def _has_links(path: Path) -> bool:
    """Say whether a file has several names; some systems let anybody link another's file."""
    try:
        return path.lstat().st_nlink > 1
    except OSError:
        return False


def _is_folder_of(path: Path, uid: str) -> bool:
    """Say whether a path is a real folder that belongs to a user."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and str(found.st_uid) == uid


def _process_name(pid: int) -> str:
    try:
        return f"pid {pid} ({user_name(psutil.Process(pid).uids().real)})"
    except (psutil.Error, ValueError):  # -1: a lock that no process of this machine holds
        return f"a child of pid {pid}, which has ended"
