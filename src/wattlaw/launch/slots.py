"""Slots of this machine: a run that has one uses its GPU, or its share of the cores, exclusively.

A slot is a file that is locked (flock) while a run occupies it. All campaigns of a user on a
machine share the files, whatever their stores, so that measurements do not disturb each other. The
kernel releases the slots of a process that dies.
"""

import fcntl
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Self

from wattlaw.errors import NotAvailable


class Slots:
    """Named slots under one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def of_this_user(cls) -> Self:
        """Return the slots of this user on this machine.

        Raises
        ------
        NotAvailable
            The folder for them belongs to another user.
        """
        folder = Path(tempfile.gettempdir()) / f"wattlaw-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.is_symlink() or folder.stat().st_uid != os.getuid():
            raise NotAvailable(
                f"{folder}: belongs to another user; set TMPDIR to a folder of yours"
            )
        return cls(folder)

    def acquire(self, names: Sequence[str], count: int) -> "SlotLease | None":
        """Lock ``count`` of the named slots, in their order, or none of them."""
        lease = SlotLease()
        for name in names:
            if len(lease.names) == count:
                break
            file = (self._folder / re.sub(r"[^\w.-]", "_", name)).open("ab")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                continue
            lease.add(name, file)
        if len(lease.names) == count:
            return lease
        lease.release()
        return None


class SlotLease:
    """Slots that are locked until they are released or this process ends."""

    def __init__(self) -> None:
        self._files: dict[str, BinaryIO] = {}

    @property
    def names(self) -> list[str]:
        """Return the names of the slots."""
        return list(self._files)

    def add(self, name: str, file: BinaryIO) -> None:
        """Add a slot by its locked file."""
        self._files[name] = file

    def release(self) -> None:
        """Unlock the slots; repeated calls do nothing."""
        while self._files:
            self._files.popitem()[1].close()
