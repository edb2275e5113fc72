"""Which folders and files of a machine with several users can be trusted."""

import os
import stat
from pathlib import Path

from wattlaw.common.errors import BadInput, NotAvailable
from wattlaw.common.files import open_regular
from wattlaw.common.machine_lock import user_name

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def check_only_root_writes(path: Path, *, or_sticky: bool = False) -> None:
    """Raise ``NotAvailable`` if other users can change a file or replace it.

    Root, or the user that runs wattlaw (a Slurm may run as another), must own it and all its parent
    folders. With ``or_sticky`` other users may add files of their own to the folder, as in
    ``/tmp``.
    """
    real = Path(os.path.realpath(path))
    for part in (real, *real.parents):
        try:
            status = part.stat()
        except OSError as error:
            raise NotAvailable(f"{part}: {error.strerror}") from None
        if status.st_uid not in (0, os.geteuid()):
            raise NotAvailable(f"{part} belongs to user {user_name(status.st_uid)}, not to root")
        may_be_sticky = or_sticky or part != real
        is_sticky = stat.S_ISDIR(status.st_mode) and bool(status.st_mode & stat.S_ISVTX)
        if status.st_mode & _OTHERS_WRITE and not (is_sticky and may_be_sticky):
            fault = "other users can remove files in it" if part.is_dir() else "others may write it"
            raise NotAvailable(f"{part}: {fault}; 'chmod go-w' it")


def read_small_file(path: Path, max_bytes: int) -> bytes | None:
    """Return the content of a regular file; None if there is no file.

    Raises ``BadInput`` if it is a link, a pipe, a folder or another special file, it is too large,
    or it cannot be read.
    """
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
