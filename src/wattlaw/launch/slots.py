"""Slots on this machine: who holds one has its GPU, or its share of the cores, alone.

A place is a file that is locked (flock) while a run occupies it. All ``wattlaw run`` of a user on
a machine see the same files, whatever their stores, so that none disturbs the other's
measurements; the kernel gives the places of a process that dies back.
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
    """Named places under one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def of_this_user(cls) -> Self:
        """Return the places of this user on this machine.

        Raises
        ------
        NotAvailable
            The folder for them belongs to somebody else.
        """
        folder = Path(tempfile.gettempdir()) / f"wattlaw-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.is_symlink() or folder.stat().st_uid != os.getuid():
            raise NotAvailable(
                f"{folder}: belongs to another user; set TMPDIR to a folder of yours"
            )
        return cls(folder)

    def claim(self, names: Sequence[str], count: int) -> "SlotLease | None":
        """Take ``count`` of the named places, in their order, or none of them."""
        claim = SlotLease()
        for name in names:
            if len(claim.names) == count:
                break
            file = (self._folder / re.sub(r"[^\w.-]", "_", name)).open("ab")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                continue
            claim.add(name, file)
        if len(claim.names) == count:
            return claim
        claim.release()
        return None


class SlotLease:
    """Slots held until they are released or this process ends."""

    def __init__(self) -> None:
        self._files: dict[str, BinaryIO] = {}

    @property
    def names(self) -> list[str]:
        """Return the names of the places held."""
        return list(self._files)

    def add(self, name: str, file: BinaryIO) -> None:
        """LimitLease one more place, by its locked file."""
        self._files[name] = file

    def release(self) -> None:
        """Give the places back; more than once is harmless."""
        while self._files:
            self._files.popitem()[1].close()
