"""Which folders and files of a machine with several users can be trusted."""

import os
import pwd
import stat
from pathlib import Path

from wattlaw.errors import BadInput, NotAvailable
from wattlaw.files import open_regular

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
#: Neither a link, a pipe nor a terminal in place of a file has an effect when it is opened.
SAFELY = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def only_root_writes(path: Path, *, or_sticky: bool = False) -> None:
    """Raise ``NotAvailable`` if others may change a file, or put another one in its place.

    Root, or the user that we are (a Slurm may run as another), must own it and all folders above.

    Parameters
    ----------
    path
        A file or folder.
    or_sticky
        Others may add files of their own to the folder, as in ``/tmp``.
    """
    real = Path(os.path.realpath(path))
    for part in (real, *real.parents):
        try:
            found = part.stat()
        except OSError as error:
            raise NotAvailable(f"{part}: {error.strerror}") from None
        if found.st_uid not in (0, os.geteuid()):
            raise NotAvailable(f"{part} belongs to user {user_name(found.st_uid)}, not to root")
        may_be_sticky = or_sticky or part != real
        is_sticky = stat.S_ISDIR(found.st_mode) and bool(found.st_mode & stat.S_ISVTX)
        if found.st_mode & _OTHERS_WRITE and not (is_sticky and may_be_sticky):
            told = "other users can remove files in it" if part.is_dir() else "others may write it"
            raise NotAvailable(f"{part}: {told}; 'chmod go-w' it")


def read_small(path: Path, most_bytes: int) -> tuple[bytes, os.stat_result] | None:
    """Return the content of a regular file and its status; None where there is no file.

    Raises
    ------
    BadInput
        It is a link, a pipe, a folder or another special file, it is too large, or it cannot be
        read.
    """
    try:
        with open_regular(path, follow_links=False) as file:
            status = os.fstat(file.fileno())
            content = file.read(most_bytes + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from None
    if len(content) > most_bytes:
        raise BadInput(f"{path}: larger than {most_bytes} bytes")
    return content, status


def user_name(uid: int) -> str:
    """Return the name of a user, or the number of one without a name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
