"""Safe file access: atomic writes, reads that never block, locks, removal of abandoned files."""

import contextlib
import errno
import fcntl
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from wattlaw.common.errors import BadInput

if TYPE_CHECKING:
    import pyarrow as pa

#: Far larger than any JSON file of a store; in memory it can take thirty times its size.
MAX_TEXT_BYTES = 16 * 2**20
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
#: ``.NAME.`` and what tempfile.mkstemp adds.
_TEMPORARY = re.compile(r"\..+\.[a-z0-9_]{8}")
_DAY_S = 86_400.0
#: Links of one path, as in Linux (path_resolution(7)).
_MAX_LINKS = 40


def read_bytes(path: Path, most_bytes: int = MAX_TEXT_BYTES) -> bytes:
    """Return the content of a regular file. A pipe or a device is an error; the call never blocks.

    Raises ``OSError``, which names ``path``, also if it is larger than ``most_bytes``.
    """
    with naming(path), open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > most_bytes:
            raise OSError(errno.EFBIG, f"larger than {most_bytes:,} bytes")
        return file.read()


def read_input(path: Path, most_bytes: int) -> bytes:
    """Return the content of a user's file; ``BadInput`` states why it cannot be read."""
    try:
        return read_bytes(path, most_bytes)
    except (OSError, ValueError) as error:  # ValueError: no file can have this name
        why = getattr(error, "strerror", None) or error
        raise BadInput(f"{path}: cannot be read: {why}") from None


def open_regular(path: Path, *, append: bool = False, follow_links: bool = True) -> BinaryIO:
    """Open a regular file for reading, or for appending; the latter creates it.

    Raises ``OSError``, which names ``path``, also for a pipe, and for a link if none is followed.
    """
    if append and follow_links:
        path, follow_links = resolve_output(path), False
    how = os.O_RDWR | os.O_APPEND | os.O_CREAT if append else os.O_RDONLY
    how |= 0 if follow_links else os.O_NOFOLLOW
    handle = os.open(path, how | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o666)
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(handle, "ab" if append else "rb")
    os.close(handle)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "not a regular file", str(path))


def read_text(path: Path) -> str:
    return read_bytes(path).decode("utf-8")


def read_end(path: Path, most_bytes: int = MAX_TEXT_BYTES) -> str:
    """Return the end of a log, as ``read_bytes``; bytes that are not UTF-8 are replaced."""
    with naming(path), open_regular(path) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - most_bytes))
        return file.read(most_bytes).decode("utf-8", "replace")


@contextlib.contextmanager
def naming(path: Path, temporary: Path | None = None) -> Iterator[None]:
    """Name ``path`` in system errors that name no file (a full disk), or only the temporary one."""
    try:
        yield
    except OSError as error:
        if error.filename is not None and str(error.filename) != str(temporary):
            raise
        why = error.strerror or (os.strerror(error.errno) if error.errno else str(error))
        raise OSError(error.errno or errno.EIO, why, str(path)) from error


def locked(file: BinaryIO | int, how: int = fcntl.LOCK_EX) -> bool:
    """Lock an open file (flock); False if another process has a lock, True without locks at all."""
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


@contextlib.contextmanager
def replacing(path: Path, *, durable: bool = True, mode: int | None = None) -> Iterator[Path]:
    """Yield a temporary path that replaces ``path`` when the block ends without an error.

    Readers see the old file or the new one, never a part of it. ``durable`` also waits for the
    disk. A link is followed, except as ``resolve_output`` says. A special file, such as a pipe, is
    written to directly. The mode of a new file follows from the umask unless ``mode`` is set; that
    of a file that exists becomes no wider. Raises ``OSError``, which names ``path``, if it is a
    folder, its folder is missing, or the disk is full.
    """
    path = resolve_output(path)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    before = path.lstat() if path.exists() else None
    if before is not None and not stat.S_ISREG(before.st_mode):
        _refuse_of_others(path, before, "a special file")
        yield path
        return
    try:
        handle, temporary = locked_temporary(path)
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0), str(path)) from None
    try:
        with naming(path, temporary):
            yield temporary
            umask = os.umask(0o077)
            os.umask(umask)
            wanted = 0o666 & ~umask if mode is None else mode
            if before is not None:
                wanted &= stat.S_IMODE(before.st_mode)
                if os.fstat(handle).st_gid != before.st_gid:
                    try:
                        os.fchown(handle, -1, before.st_gid)
                    except OSError:  # another group may not read what the old file kept from it
                        wanted &= ~0o070
            temporary.chmod(wanted)
            if durable:
                _sync(temporary)
            temporary.replace(path)
            if durable:
                _sync(path.parent)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
        os.close(handle)


def resolve_output(path: Path) -> Path:
    """Return a path for writing without links, as ``os.path.realpath`` does.

    Raises ``PermissionError`` at a link of another user in a folder in which everybody may create
    files: it can lead to any file of this user. Linux does the same where the setting
    ``fs.protected_symlinks`` is on.
    """
    current, parts, links = Path.cwd() if not path.is_absolute() else Path("/"), [*path.parts], 0
    while parts:
        part = parts.pop(0)
        if part in ("/", ".."):
            current = Path("/") if part == "/" else current.parent
            continue
        entry = current / part
        try:
            status = entry.lstat()
        except OSError:
            status = None
        if status is None or not stat.S_ISLNK(status.st_mode):
            current = entry
            continue
        _refuse_of_others(entry, status, "a link")
        links += 1
        if links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        parts = [*entry.readlink().parts, *parts]
    return current


def _refuse_of_others(path: Path, status: os.stat_result, what: str) -> None:
    """Raise ``PermissionError`` at what another user put into a folder that everybody may use."""
    folder = path.parent.stat()
    is_shared = folder.st_mode & stat.S_IWOTH or (
        folder.st_mode & stat.S_ISVTX and folder.st_mode & stat.S_IWGRP
    )
    if is_shared and status.st_uid not in (os.geteuid(), 0):
        why = f"{what} of another user (uid {status.st_uid}) in a shared folder; name another file"
        raise PermissionError(errno.EPERM, why, str(path))


def locked_temporary(path: Path) -> tuple[int, Path]:
    """Return a new temporary file beside ``path``; its lock shows that the writer is alive."""
    while True:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        if locked(handle) and os.fstat(handle).st_nlink:
            return handle, Path(name)
        os.close(handle)  # another process just removed it as abandoned


def remove_abandoned(folder: Path) -> None:
    """Remove the temporary files of killed writers from a folder.

    A writer holds a lock (flock) on its temporary file. The kernel, or an NFS server, drops it
    when the writer dies. Without locks, a file is removed a day after its last change.
    """
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(folder)):
            if _TEMPORARY.fullmatch(entry.name):
                with abandoned(Path(entry.path)) as is_abandoned, contextlib.suppress(OSError):
                    if is_abandoned:
                        os.unlink(entry.path)  # noqa: PTH108 - quicker


@contextlib.contextmanager
def abandoned(path: Path) -> Iterator[bool]:
    """Lock a regular file that no living process has locked; yield whether that succeeded."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    try:
        is_abandoned = stat.S_ISREG(os.fstat(handle).st_mode)
        if is_abandoned:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                is_abandoned = False
            except OSError:
                is_abandoned = is_old(handle)
        yield is_abandoned
    finally:
        os.close(handle)


def is_old(path: Path | int) -> bool:
    try:
        return time.time() - os.stat(path).st_mtime > _DAY_S  # noqa: PTH116 - of a handle too
    except OSError:
        return False


def write_text(path: Path, text: str, *, durable: bool = True, mode: int | None = None) -> None:
    with replacing(path, durable=durable, mode=mode) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_parquet(path: Path, table: "pa.Table", *, durable: bool = True) -> None:
    import pyarrow.parquet as pq

    with replacing(path, durable=durable) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
