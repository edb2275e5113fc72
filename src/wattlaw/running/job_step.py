"""The tasks of one ``srun``: together they record one run, in a folder that all nodes share."""

import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from wattlaw.common.errors import NotAvailable
from wattlaw.common.files import read_text, write_text
from wattlaw.store.run_folder import RunFolder
from wattlaw.store.store import Store

#: How long tasks wait for the run of the first one, and the first one for the other hosts: to
#: begin if its own part is over, and to end.
_RUN_S, _BEGIN_S, _END_S = 60.0, 10.0, 60.0
_POLL_S = 0.1


@dataclass(frozen=True)
class JobStep:
    id: str
    nodes: int
    tasks: int
    task: int
    local_task: int  # among those of this host

    @classmethod
    def of_environment(cls) -> "JobStep | None":
        ids = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
        step = "-".join(os.environ.get(name, "0") for name in ids)
        names = ("STEP_NUM_NODES", "STEP_NUM_TASKS", "PROCID", "LOCALID")
        read = (first_number([f"SLURM_{name}"]) for name in names)
        numbers = [number for number in read if number is not None]
        if len(numbers) < len(names) or numbers[1] < 2 or not re.fullmatch("[0-9-]+", step):
            return None
        return cls(step, *numbers)

    def announce(self, store: Store, what: str, folder: RunFolder) -> None:
        write_text(self._path(store, what), folder.run_id)

    def withdraw(self, store: Store, what: str) -> None:
        self._path(store, what).unlink(missing_ok=True)

    def join(self, store: Store, what: str) -> RunFolder:
        """Return the run that the first task has begun, once for each task; or ``NotAvailable``."""
        path, end_s = self._path(store, what), time.monotonic() + _RUN_S
        while time.monotonic() < end_s:
            try:
                run_id = read_text(path)
                if re.fullmatch("[0-9a-f]{16}", run_id):
                    folder = store.folder(run_id)
                    (folder.live(1) / f"joined.{self.task}").open("x").close()
                    return folder
            except OSError:
                pass
            time.sleep(_POLL_S)
        raise NotAvailable(
            f"{store.path}: no run of task 0 of this srun within {_RUN_S:g} s; this node is not "
            "recorded; use a folder on a file system that all nodes share"
        )

    def _path(self, store: Store, what: str) -> Path:
        return store.path / f"step.{self.id}.{what}"


def missing_hosts(live: Path, nodes: int) -> str | None:
    """Wait for the other hosts of a run; return how many have recorded nothing, as a message."""
    begun = _wait_for(live, "windows.*.csv", nodes, _BEGIN_S)
    ended = _wait_for(live, "facts.*.json", begun, _END_S)
    if ended >= nodes:
        return None
    return (
        f"{nodes - ended} of {nodes} nodes recorded nothing; the store must be on a file system "
        "that all nodes share, and the command must end on all of them"
    )


def _wait_for(folder: Path, pattern: str, files: int, most_s: float) -> int:
    end_s = time.monotonic() + most_s
    while (count := len([*folder.glob(pattern)])) < files and time.monotonic() < end_s:
        time.sleep(_POLL_S)
    return count


def first_number(variables: Iterable[str]) -> int | None:
    values = (os.environ.get(name, "") for name in variables)
    return next((int(text) for text in values if re.fullmatch("[0-9]{1,7}", text)), None)
