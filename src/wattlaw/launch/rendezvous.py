"""How the processes of a run that stays on one machine find each other."""

import os
import sys
from pathlib import Path

from wattlaw.training.environment import RENDEZVOUS_FILE


class Rendezvous:
    """Files through which the processes of a run on one machine find each other.

    torch's TCP store would listen on every interface of the machine. The files are in memory where
    the system has that: torch waits for ever when a disk becomes full under its file store.
    They are there until ``close``, or until this process ends.

    Parameters
    ----------
    folder
        Of this run alone, on a file system of this machine or one that locks files; used where
        there are no files in memory.
    """

    def __init__(self, folder: Path) -> None:
        self._handles: list[int] = []
        #: Words for torchrun.
        self.words = ["--local-addr", "127.0.0.1", "--rdzv-backend", "c10d"]
        self.words += ["--rdzv-conf", "store_type=file"]
        self.words += ["--rdzv-endpoint", self._file(folder / "agents")]
        #: Variables for torchrun and its ranks.
        self.environment = {
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            RENDEZVOUS_FILE: self._file(folder / "ranks"),
        }

    def _file(self, path: Path) -> str:
        if sys.platform != "linux":
            return str(path)
        handle = os.memfd_create(path.name)
        self._handles.append(handle)
        return f"/proc/{os.getpid()}/fd/{handle}"

    def close(self) -> None:
        """Remove the files in memory; more than once is harmless."""
        while self._handles:
            os.close(self._handles.pop())
