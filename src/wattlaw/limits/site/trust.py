"""Whom root trusts: only what nobody else can change."""

import os
import stat
from pathlib import Path

from wattlaw.errors import NotAvailable

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def only_root_writes(path: Path) -> None:
    """Raise ``NotAvailable`` if others may change a file, or put another one in its place.

    Root, or the user that we are (a Slurm may run as another), must own it and all folders above.
    """
    real = Path(os.path.realpath(path))
    for part in (real, *real.parents):
        try:
            found = part.stat()
        except OSError as error:
            raise NotAvailable(f"{part}: {error.strerror}") from None
        is_sticky = stat.S_ISDIR(found.st_mode) and bool(found.st_mode & stat.S_ISVTX)
        if found.st_uid not in (0, os.geteuid()):
            raise NotAvailable(f"{part} belongs to user {found.st_uid}; root must own it")
        if found.st_mode & _OTHERS_WRITE and not is_sticky:
            raise NotAvailable(f"others may write {part}; 'chmod go-w' it")
