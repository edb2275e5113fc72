"""Saved states of devices: one file per device, on disk before anything is changed.

Each user has a private folder on this machine, ``/var/tmp/wattlaw-limits-UID`` or that of
``WATTLAW_LIMITS_DIR``. Only this user and root can write it, so its files can be trusted.
"""

import contextlib
import os
import re
import socket
import stat
from pathlib import Path

import psutil
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, model_validator

from wattlaw.common import machine_lock
from wattlaw.common.errors import BadInput, NotAvailable
from wattlaw.common.files import locked, open_regular, write_text
from wattlaw.common.text import quote

VARIABLE = "WATTLAW_LIMITS_DIR"
#: A saved state takes about 500 bytes.
_MAX_BYTES = 16_384
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class SavedState(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    device: str
    host: str
    power_limit_w: float | None  # the previous limit; None: not changed
    set_w: float | None  # the limit that was set
    unlock_clock: bool  # the clock was locked; before, as the user stated, it was not
    #: The requested power profiles before; None: not changed.
    power_profiles: tuple[str, ...] | None = None
    token: str  # of the owner that wrote it
    owner_pid: int = Field(ge=0, lt=2**31)
    user: str
    made_at: AwareDatetime
    boot_id: str | None
    kept: bool = False  # set by 'limits set', to stay until 'limits restore'
    job_id: str | None = None  # the job for which a Slurm prolog has set it
    node: str | None = None  # this machine's name in that Slurm

    @model_validator(mode="after")
    def _check_power_fields(self) -> "SavedState":
        if (self.power_limit_w is None) != (self.set_w is None):
            raise ValueError("power_limit_w and set_w must both be set, or neither")
        return self

    @property
    def is_from_this_boot(self) -> bool:
        """Return whether the machine has not booted since. Drivers forget limits at a boot."""
        return self.boot_id == boot_id()

    @property
    def is_for_this_host(self) -> bool:
        """A folder may be on a shared file system. Containers of one machine have host names of
        their own, but the machine's boot id."""
        same_boot = self.boot_id is not None and self.is_from_this_boot
        return same_boot or self.host == socket.gethostname()


def boot_id() -> str | None:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return None


class StateFolder:
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
        try:
            if not stat.S_ISDIR(self.path.lstat().st_mode):
                raise NotAvailable(f"{self.path} is not a folder")
            check_only_root_writes(self.path)
        except NotAvailable as error:
            raise NotAvailable(f"{error}{self.advice}") from None
        except OSError as error:
            raise NotAvailable(f"{self.path}: {error.strerror}{self.advice}") from None

    def lock(self, device: str) -> list[int] | None:
        """Return the open files of the lock, None if another process has locked the device. It
        stays locked until every copy of the files is closed, so a watchdog that has inherited them
        keeps the lock when its owner dies. Users of this machine exclude each other by a lock of
        the machine; containers that share this folder, but not the network, by a locked file."""
        machine = machine_lock.lock(f"limits/{device}")
        if machine is None:
            return None
        with machine:
            file = self.lock_file(device)
            return None if file is None else [file, machine.detach()]

    def lock_file(self, device: str) -> int | None:
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
        holder = machine_lock.holder(f"limits/{device}")
        if holder is None:
            return None
        has_ended = bool(holder.pid) and not psutil.pid_exists(holder.pid)
        return f"{'a child of ' * has_ended}pid {holder.pid or 'unknown'} ({holder.user})"

    def write(self, saved: SavedState) -> None:
        """When this returns, the state survives a loss of power."""
        path = self._file(saved.device, "json")
        try:
            write_text(path, saved.model_dump_json(indent=1) + "\n", mode=0o600)
        except OSError as error:
            reason = f"cannot be written: {error.strerror}; no limit was set"
            raise NotAvailable(f"{path}: {reason}") from None

    def read(self, device: str) -> SavedState | None:
        return self._read(self._file(device, "json"))

    def survey(self) -> tuple[list[SavedState], list[str]]:
        states: list[SavedState] = []
        damaged: list[str] = []
        if not os.path.lexists(self.path):
            return states, damaged
        self.check()
        for path in sorted(self.path.glob("[!.]*.json")):
            try:
                states += [saved] if (saved := self._read(path)) is not None else []
            except BadInput as error:  # other files are still read
                advice = "check the limit of that device, then remove this file"
                damaged.append(f"{error}; {advice}")
        return states, damaged

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
        with contextlib.suppress(ValidationError):
            saved = SavedState.model_validate_json(content)
            is_printable = f"{saved.device}{saved.user}{saved.host}".isprintable()
            if is_printable and path == self._file(saved.device, "json"):
                return saved
        raise BadInput(f"{path}: not a saved limit")


def check_only_root_writes(path: Path, *, or_sticky: bool = False) -> None:
    """Raise ``NotAvailable`` if other users can change a file or replace it. Root, or the user that
    runs wattlaw (a Slurm may run as another), must own it and all its parent folders. With
    ``or_sticky`` other users may add files of their own to the folder, as in ``/tmp``."""
    real = Path(os.path.realpath(path))
    for part in (real, *real.parents):
        try:
            status = part.stat()
        except OSError as error:
            raise NotAvailable(f"{part}: {error.strerror}") from None
        if status.st_uid not in (0, os.geteuid()):
            owner = machine_lock.user_name(status.st_uid)
            raise NotAvailable(f"{part} belongs to user {owner}, not to root")
        may_be_sticky = or_sticky or part != real
        is_sticky = stat.S_ISDIR(status.st_mode) and bool(status.st_mode & stat.S_ISVTX)
        if status.st_mode & _OTHERS_WRITE and not (is_sticky and may_be_sticky):
            fault = "other users can remove files in it" if part.is_dir() else "others may write it"
            raise NotAvailable(f"{part}: {fault}; 'chmod go-w' it")


def read_small_file(path: Path, max_bytes: int) -> bytes | None:
    """Return the content of a regular file; None if there is no file. Raises ``BadInput`` if it is
    a link, a pipe, a folder or another special file, or too large."""
    try:
        with open_regular(path, follow_links=False) as file:
            content = file.read(max_bytes + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from None
    if len(content) > max_bytes:
        raise BadInput(f"{path}: larger than {max_bytes} bytes")
    return content
