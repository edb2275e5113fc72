"""The rendezvous of the processes of a run on one machine."""

import os
import sys
from pathlib import Path

from wattlaw.training.environment import RENDEZVOUS_FILE


class Rendezvous:
    """Rendezvous files for torchrun and its ranks.

    Files are used because torch's TCP store listens on every interface of the machine. On Linux
    they are in memory, because torch waits for ever if the disk of its file store is full. They
    exist until ``close``, or until this process ends.

    Parameters
    ----------
    folder
        A folder of this run only, on a file system that locks files; not used on Linux.
    """

    def __init__(self, folder: Path) -> None:
        self._handles: list[int] = []
        #: Options of torchrun.
        self.arguments = ["--local-addr", "127.0.0.1", "--rdzv-backend", "c10d"]
        self.arguments += ["--rdzv-conf", "store_type=file"]
        self.arguments += ["--rdzv-endpoint", self._file(folder / "agents")]
        #: Environment variables for torchrun and its ranks.
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
        """Remove the files in memory; repeated calls do nothing."""
        while self._handles:
            os.close(self._handles.pop())
