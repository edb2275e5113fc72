"""The folder of saved states: one file per device, on disk before anything is changed.

Each user has a private folder on this machine, ``/var/tmp/wattlaw-limits-UID`` or that of
``WATTLAW_LIMITS_DIR``. Only this user and root can write it, so its files can be trusted.
"""

import contextlib
import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from pydantic import ValidationError

from wattlaw.common import machine_lock
from wattlaw.common.errors import BadInput, NotAvailable
from wattlaw.common.files import locked, write_text
from wattlaw.common.text import quote
from wattlaw.measure.limits.saved_state import SavedState
from wattlaw.measure.limits.trust import check_only_root_writes, read_small_file

VARIABLE = "WATTLAW_LIMITS_DIR"
#: A saved state takes about 500 bytes.
_MAX_BYTES = 16_384


@dataclass(frozen=True)
class FolderContents:
    """The saved states of a folder, and messages about files that are damaged."""

    states: list[SavedState] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)


class StateFolder:
    #: Ends a message about a folder that cannot be used.
    advice = f"; set {VARIABLE}"

    def __init__(self, path: Path | None = None) -> None:
        chosen = path or os.environ.get(VARIABLE)
        if chosen and not Path(chosen).is_absolute():
            raise BadInput(f"{VARIABLE} is {quote(str(chosen))}; allowed: an absolute path")
        default = f"/var/tmp/wattlaw-limits-{os.geteuid()}"  # noqa: S108 - checked before its use
        absolute = Path(chosen or default)
        # A link above it cannot be changed any more once its target has been checked.
        self.path = Path(os.path.realpath(absolute.parent)) / absolute.name

    def create(self) -> None:
        """Create the folder; raises ``NotAvailable`` if that fails, or as ``check`` does."""
        try:
            if not os.path.lexists(self.path):
                parent = next(path for path in self.path.parents if os.path.lexists(path))
                check_only_root_writes(parent, or_sticky=True)
                self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except (NotAvailable, OSError) as error:
            why = getattr(error, "strerror", error)
            raise NotAvailable(f"{self.path}: cannot be created: {why}{self.advice}") from None
        self.check()

    def check(self) -> None:
        """Raise ``NotAvailable`` if it is no folder, or other users than root can write it."""
        try:
            if not stat.S_ISDIR(self.path.lstat().st_mode):
                raise NotAvailable(f"{self.path} is not a folder")
            check_only_root_writes(self.path)
        except NotAvailable as error:
            raise NotAvailable(f"{error}{self.advice}") from None
        except OSError as error:
            raise NotAvailable(f"{self.path}: {error.strerror}{self.advice}") from None

    def lock(self, device: str) -> list[int] | None:
        """Lock a device; return the open files of the lock, None if another process has locked it.

        The device stays locked until every copy of the files is closed, so a watchdog that has
        inherited them keeps the lock when its owner dies. Users of this machine exclude each other
        by a lock of the machine. Containers that share this folder, but not the network, exclude
        each other by a locked file. Raises ``NotAvailable`` if that cannot be opened.
        """
        machine = machine_lock.lock(f"limits/{device}")
        if machine is None:
            return None
        with machine:
            file = self.lock_file(device)
            return None if file is None else [file, machine.detach()]

    def lock_file(self, device: str) -> int | None:
        """Lock the file of a device; return it, None if another process has locked it."""
        path = self._file(device, "lock")
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            reason = f"cannot be opened: {error.strerror}"
            raise NotAvailable(f"{path}: {reason}{self.advice}") from None
        if locked(handle):
            return handle
        os.close(handle)
        return None

    def lock_owner(self, device: str) -> str | None:
        """Return who has locked a device on this machine, such as ``pid 123 (ada)``, or None."""
        holder = machine_lock.holder(f"limits/{device}")
        if holder is None:
            return None
        has_ended = bool(holder.pid) and not psutil.pid_exists(holder.pid)
        return f"{'a child of ' * has_ended}pid {holder.pid or 'unknown'} ({holder.user})"

    def write(self, saved: SavedState) -> None:
        """Write a state to disk; when this returns, it survives a loss of power.

        Raises ``NotAvailable`` if it cannot be written.
        """
        path = self._file(saved.device, "json")
        try:
            write_text(path, saved.model_dump_json(indent=1) + "\n", mode=0o600)
        except OSError as error:
            reason = f"cannot be written: {error.strerror}; no limit was set"
            raise NotAvailable(f"{path}: {reason}") from None

    def read(self, device: str) -> SavedState | None:
        return self._read(self._file(device, "json"))

    def survey(self) -> FolderContents:
        """Read all files; raises as ``check`` does if the folder exists."""
        contents = FolderContents()
        if not os.path.lexists(self.path):
            return contents
        self.check()
        for path in sorted(self.path.glob("[!.]*.json")):
            try:
                saved = self._read(path)
            except BadInput as error:  # other files are still read
                advice = "check the limit of that device, then remove this file"
                contents.damaged.append(f"{error}; {advice}")
            else:
                contents.states.extend([saved] if saved is not None else [])
        return contents

    def remove(self, device: str) -> None:
        """Remove the files of a restored device, also incomplete ones."""
        path = self._file(device, "json")
        path.unlink(missing_ok=True)
        for part in self.path.glob(f".{path.name}.*"):
            with contextlib.suppress(OSError):
                part.unlink()

    def _file(self, device: str, kind: str) -> Path:
        return self.path / f"{re.sub(r'[^A-Za-z0-9._-]', '_', device)}.{kind}"

    def _read(self, path: Path) -> SavedState | None:
        content = read_small_file(path, _MAX_BYTES)
        if content is None:
            return None
        try:
            saved = SavedState.model_validate_json(content)
        except ValidationError:
            raise BadInput(f"{path}: not a saved limit") from None
        is_printable = f"{saved.device}{saved.user}{saved.host}".isprintable()
        if not is_printable or path != self._file(saved.device, "json"):
            raise BadInput(f"{path}: not a saved limit")
        return saved
