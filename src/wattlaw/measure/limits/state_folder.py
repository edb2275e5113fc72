"""The folder of saved states: one file per device, on disk before anything is changed.

All users of a machine share one folder (``/var/tmp/wattlaw-limits``, or ``WATTLAW_LIMITS_DIR``),
which is sticky as ``/tmp`` is. If root has not created it, each user has a private folder
(``/var/tmp/wattlaw-limits-UID``). The lock file of a device decides who may limit it.

Any user can put any file into a shared folder. So only states of root and of this user count.
Files of other users are reported; links in the folder are not followed.
"""

import contextlib
import fcntl
import os
import re
import secrets
import stat
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from pydantic import ValidationError

from wattlaw.common.errors import BadInput, NotAvailable
from wattlaw.common.files import locked, locked_temporary, locking_process
from wattlaw.common.text import quote
from wattlaw.measure.limits.saved_state import SavedState
from wattlaw.measure.limits.trust import (
    SAFE_OPEN_FLAGS,
    check_only_root_writes,
    read_small_file,
    user_name,
)

VARIABLE = "WATTLAW_LIMITS_DIR"
_FOLDER = "/var/tmp/wattlaw-limits"  # noqa: S108 - it must be one for all users
#: A process that tests a lock takes it for a moment.
_LOCK_WAITS_S = (0.0, 0.01, 0.05)
#: A saved state takes about 500 bytes.
_MAX_BYTES = 16_384
#: How many files of other users are opened; further ones are only counted.
_MAX_FOREIGN_FILES = 64


@dataclass(frozen=True)
class FolderContents:
    """The contents of a folder of saved states."""

    states: list[SavedState]
    #: Messages about damaged files of root or this user.
    damaged: list[str]
    #: Messages about damaged files of other users, one per user. They do not stop a command.
    ignored: list[str]


class StateFolder:
    """The folder of saved states and locks."""

    def __init__(self, path: Path | None = None) -> None:
        chosen = path or os.environ.get(VARIABLE)
        if chosen and not Path(chosen).is_absolute():
            raise BadInput(f"{VARIABLE} is {quote(str(chosen))}; allowed: an absolute path")
        absolute = Path(chosen or _default_folder()).absolute()
        # A link above it cannot be changed any more once its target has been checked.
        self.path = Path(os.path.realpath(absolute.parent)) / absolute.name
        self._is_default = not chosen

    def create(self) -> None:
        """Create the folder: root for all users of the machine, other users for themselves.

        Raises ``NotAvailable`` if it cannot be created or must not be trusted.
        """
        try:
            if self._is_default and os.geteuid() == 0:
                self._rename_foreign_folder()
            if not os.path.lexists(self.path):
                parent = next(path for path in self.path.parents if os.path.lexists(path))
                check_only_root_writes(
                    parent, or_sticky=True
                )  # otherwise chmod could follow a link
                self.path.mkdir(mode=0o700, parents=True)
                self.path.chmod(0o1777 if os.geteuid() == 0 else 0o755)
        except FileExistsError:
            pass
        except (NotAvailable, OSError) as error:
            why = getattr(error, "strerror", error)
            raise NotAvailable(f"{self.path}: cannot be created: {why}; set {VARIABLE}") from None
        self.check()

    def _rename_foreign_folder(self) -> None:
        """As root, rename a default folder of another user to that user's private folder."""
        uid = _owner(self.path)
        if uid in (None, 0):
            return
        private = Path(f"{self.path}-{uid}")
        if os.path.lexists(private):
            private = Path(f"{self.path}.{secrets.token_hex(8)}")
        self.path.rename(private)

    def check(self) -> None:
        """Raise ``NotAvailable`` if it is no folder, or users can replace others' files in it."""
        try:
            if not stat.S_ISDIR(self.path.lstat().st_mode):
                raise NotAvailable(f"{self.path} is not a folder")
            check_only_root_writes(self.path, or_sticky=True)
        except NotAvailable as error:
            command = f"mv {self.path} {self.path}.old; mkdir -m 1777 {self.path}"
            raise NotAvailable(f"{error}; ask root to run '{command}', or set {VARIABLE}") from None
        except OSError as error:
            raise NotAvailable(f"{self.path}: {error.strerror}; set {VARIABLE}") from None

    def lock(self, device: str) -> int | None:
        """Lock a device; return the open lock file, None if another process has locked it.

        The device stays locked until every copy of the open file is closed, so a watchdog that
        has inherited it keeps the lock when its owner dies.

        Raises ``NotAvailable`` if the lock file cannot be opened.
        """
        path = self._file(device, "lock")
        for wait_s in _LOCK_WAITS_S:
            time.sleep(wait_s)
            handle = self._open_lock(path)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_there = os.path.samestat(os.fstat(handle), path.lstat())
                # Each process takes its own lock first, so two at once cannot both miss the other.
                if is_there and not any(other.is_locked(device) for other in self._other_folders()):
                    return handle
            except (BlockingIOError, FileNotFoundError):
                pass  # another process has locked it, or a cleaner has removed the file
            except OSError as error:
                os.close(handle)
                reason = f"cannot be locked: {error.strerror}"
                raise NotAvailable(f"{path}: {reason}; set {VARIABLE}") from None
            os.close(handle)
        return None

    def is_locked(self, device: str) -> bool:
        """Return whether a process has locked a device."""
        try:
            handle = os.open(self._file(device, "lock"), SAFE_OPEN_FLAGS)
        except OSError:
            return False  # nobody can lock it
        try:
            return stat.S_ISREG(os.fstat(handle).st_mode) and not locked(handle, fcntl.LOCK_SH)
        except OSError:
            return False
        finally:
            os.close(handle)

    def is_locked_anywhere(self, device: str) -> bool:
        """Return whether a process has locked a device, here or in another user's folder."""
        return any(folder.is_locked(device) for folder in (self, *self._other_folders()))

    def lock_owner(self, device: str) -> str | None:
        """Return who has locked a device as ``pid 123 (ada)``, None if it is unknown."""
        for folder in (self, *self._other_folders()):
            pid = locking_process(folder._file(device, "lock"))
            if pid is not None:
                return _process_name(pid)
        return None

    def write(self, saved: SavedState) -> None:
        """Write a state to disk; when this returns, it survives a loss of power.

        Raises ``NotAvailable`` if it cannot be written.
        """
        path, second = self._state_files(saved)
        if _owner(path) not in (None, os.geteuid()):
            path = second
        try:
            self._write(path, saved.model_dump_json(indent=1) + "\n")
        except OSError as error:
            reason = f"cannot be written: {error.strerror}; no limit was set"
            raise NotAvailable(f"{path}: {reason}") from None

    def _write(self, path: Path, text: str) -> None:
        # Written to a new file and renamed: a link in place of the file is not followed.
        handle, temporary = locked_temporary(path)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fchmod(handle, 0o644)  # whatever the umask: others can read it, not write it
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

    def read(self, device: str) -> SavedState | None:
        """Return this user's saved state of a device, else root's, else None.

        Raises ``BadInput`` if there is a file, but it is damaged.
        """
        return next((saved for saved in self.states(device) if not saved.is_foreign), None)

    def read_again(self, saved: SavedState) -> SavedState | None:
        """Read the file of a saved state again; raises as ``read`` does."""
        return None if saved._path is None else self._read(saved._path)

    def states(self, device: str) -> list[SavedState]:
        """Return the saved states of a device: first of this user, then of root, then of others.

        Raises ``BadInput`` if a file of this user or of root is damaged.
        """
        contents = self._survey(device)
        if contents.damaged:
            raise BadInput("; ".join(contents.damaged))
        return sorted(contents.states, key=lambda saved: (saved.is_foreign, not saved.is_ours))

    def survey(self) -> FolderContents:
        """Read all files; raises as ``check`` does if the folder exists."""
        if os.path.lexists(self.path):
            self.check()
        return self._survey(None)

    def remove(self, device: str) -> None:
        """Remove this user's files of a restored device, also incomplete ones."""
        for path in self._entries(device):
            if _owner(path) == os.geteuid():
                path.unlink(missing_ok=True)
        for part in self.path.glob(f".{self._file(device, 'json').name}.*"):
            with contextlib.suppress(OSError):
                part.unlink()

    def forget(self, saved: SavedState) -> None:
        """Remove the file that a state was read from."""
        if saved.is_ours:
            self.remove(saved.device)
        elif saved._path is not None:
            saved._path.unlink(missing_ok=True)

    def _file(self, device: str, kind: str) -> Path:
        return self.path / f"{_safe_name(device)}.{kind}"

    def _state_files(self, saved: SavedState) -> tuple[Path, Path]:
        """Return the path for a state, and an unpredictable one if another user's file is there."""
        path = self._file(saved.device, "json")
        return path, path.with_name(f"{path.stem}+{_safe_name(saved.token)}.json")

    def _other_folders(self) -> Iterator["StateFolder"]:
        """Yield the default folders of root and of other users, whose locks count, too."""
        if not self._is_default:
            return
        shared = Path(_FOLDER)
        for path in [shared, *shared.parent.glob(f"{shared.name}-*")]:
            uid = path.name.removeprefix(shared.name).removeprefix("-") or "0"
            if path.name != self.path.name and _is_folder_of(path, uid):
                yield StateFolder(path)

    def _entries(self, device: str | None) -> list[Path]:
        """Return the paths of the saved states of one device, or of all."""
        try:
            paths = sorted(self.path.glob("[!.]*.json"))
        except OSError:
            return []
        if device is None:
            return paths
        name = _safe_name(device)
        return [p for p in paths if p.name == f"{name}.json" or p.name.startswith(f"{name}+")]

    def _survey(self, device: str | None) -> FolderContents:
        contents = FolderContents([], [], [])
        ignored: Counter[int] = Counter()
        reasons: dict[int, str] = {}
        opened = 0
        for path in self._entries(device):
            status = _lstat(path)
            if status is None:
                continue
            uid = status.st_uid
            is_foreign = uid not in (0, os.geteuid())
            opened += is_foreign
            try:
                if opened > _MAX_FOREIGN_FILES and is_foreign:
                    raise BadInput(f"{path}: one of more than {_MAX_FOREIGN_FILES} files")
                saved = self._read(path)
            except BadInput as error:  # other files are still read
                reason = str(error) if str(error).isprintable() else ascii(str(error))
                # On some systems any user can make a hard link to a file of another user.
                if is_foreign or status.st_nlink > 1:
                    ignored[uid] += 1
                    reasons.setdefault(uid, reason)
                else:
                    contents.damaged.append(
                        f"{reason}; check the limit of that device, then remove this file"
                    )
            else:
                contents.states.extend([saved] if saved is not None else [])
        for uid, count in ignored.items():
            more = f", and {count - 1} more" if count > 1 else ""
            user = user_name(uid)
            contents.ignored.append(
                f"{reasons[uid]}{more}; it belongs to user {user} and is ignored; "
                f"{user} or root can remove it"
            )
        return contents

    def _read(self, path: Path) -> SavedState | None:
        file = read_small_file(path, _MAX_BYTES)
        if file is None:
            return None
        content, status = file
        try:
            saved = SavedState.model_validate_json(content)
        except ValidationError:
            raise BadInput(f"{path}: not a saved limit") from None
        is_safe = f"{saved.device}{saved.user}{saved.host}".isprintable()
        if not is_safe or path not in self._state_files(saved):
            raise BadInput(f"{path}: not a saved limit")
        saved._path, saved._uid = path, status.st_uid
        if saved.is_foreign:  # the owner of the file counts, not its content
            saved = saved.model_copy(update={"user": user_name(status.st_uid)})
        return saved

    def _open_lock(self, path: Path) -> int:
        # Try without O_CREAT first: in a sticky folder Linux refuses it for another user's file.
        reason = "another process keeps creating and removing it"
        for flags in (0, os.O_CREAT | os.O_EXCL, 0):
            try:
                handle = os.open(path, SAFE_OPEN_FLAGS | flags, 0o644)
            except (FileNotFoundError, FileExistsError):
                continue
            except OSError as error:
                reason = error.strerror or str(error)
            else:
                if stat.S_ISREG(os.fstat(handle).st_mode):
                    if flags:  # we created it; whatever the umask, every user can lock it
                        os.fchmod(handle, 0o644)
                    return handle
                os.close(handle)
                reason = "not a regular file"
            if not self._rename_foreign_lock(path):
                break
        uid = _owner(path)
        message = f"{path}: cannot be opened: {reason}"
        if uid not in (None, os.geteuid()):
            message += f"; it belongs to user {user_name(uid)}, and root can remove it"
        raise NotAvailable(f"{message}, or set {VARIABLE}")

    def _rename_foreign_lock(self, path: Path) -> bool:
        """As root, rename what another user has put in place of a lock file; return whether."""
        if os.geteuid() != 0 or _owner(path) == 0:
            return False
        with contextlib.suppress(OSError):
            if not stat.S_ISREG(path.lstat().st_mode):
                path.rename(path.with_name(f"{path.name}.{secrets.token_hex(8)}.json"))
                return True
        return False


def _safe_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", text)


def _default_folder() -> str:
    """Return the folder for all users, or the private one if root has not created that."""
    private = f"{_FOLDER}-{os.geteuid()}"
    has_private = _owner(Path(private)) == os.geteuid()
    if os.geteuid() == 0 or (_owner(Path(_FOLDER)) == 0 and not has_private):
        return _FOLDER
    return private


def _lstat(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except OSError:
        return None


def _owner(path: Path) -> int | None:
    status = _lstat(path)
    return None if status is None else status.st_uid


def _is_folder_of(path: Path, uid: str) -> bool:
    status = _lstat(path)
    return status is not None and stat.S_ISDIR(status.st_mode) and str(status.st_uid) == uid


def _process_name(pid: int) -> str:
    try:
        return f"pid {pid} ({user_name(psutil.Process(pid).uids().real)})"
    except (psutil.Error, ValueError):  # -1: no process of this machine has the lock
        return f"a child of pid {pid}, which has ended"
