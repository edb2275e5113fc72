"""The tasks of one ``srun``: together they record one run, in a folder that all nodes share."""

import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from wattlaw.errors import NotAvailable
from wattlaw.files import read_text, write_text
from wattlaw.store.run_folder import RunFolder
from wattlaw.store.store import Store

#: How long tasks wait for the run of the first one, and the first one for the other hosts: to
#: begin if its own part is over, and to end.
_RUN_S, _BEGIN_S, _END_S = 60.0, 10.0, 60.0
_POLL_S = 0.1


@dataclass(frozen=True)
class JobStep:
    """The place of this process among the tasks of a job step."""

    id: str
    nodes: int
    tasks: int
    task: int
    local_task: int  # among those of this host

    @classmethod
    def of_environment(cls) -> "JobStep | None":
        """Return the job step of several tasks that this process is part of, if any."""
        step = "-".join(
            os.environ.get(name, "0")
            for name in ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
        )
        numbers = [
            first_number([f"SLURM_{name}"])
            for name in ("STEP_NUM_NODES", "STEP_NUM_TASKS", "PROCID", "LOCALID")
        ]
        nodes, tasks, task, local_task = (-1 if value is None else value for value in numbers)
        if (
            min(nodes, tasks, task, local_task) < 0
            or tasks < 2
            or not re.fullmatch("[0-9-]+", step)
        ):
            return None
        return cls(step, nodes, tasks, task, local_task)

    def announce(self, store: Store, what: str, folder: RunFolder) -> None:
        """Name the run that the first task has begun; ``what`` is the kind of recording."""
        write_text(self._path(store, what), folder.run_id)

    def withdraw(self, store: Store, what: str) -> None:
        """Remove the name of the run, which has ended."""
        self._path(store, what).unlink(missing_ok=True)

    def join(self, store: Store, what: str) -> RunFolder:
        """Return the run that the first task has begun; each task joins a run once.

        Raises ``NotAvailable`` if there is none in this store.
        """
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
    _wait(lambda: len([*live.glob("windows.*.csv")]) >= nodes, _BEGIN_S)
    begun = len([*live.glob("windows.*.csv")])
    _wait(lambda: len([*live.glob("facts.*.json")]) >= begun, _END_S)
    ended = len([*live.glob("facts.*.json")])
    if ended >= nodes:
        return None
    return (
        f"{nodes - ended} of {nodes} nodes recorded nothing; the store must be on a file system "
        "that all nodes share, and the command must end on all of them"
    )


def _wait(condition: Callable[[], bool], most_s: float) -> None:
    end_s = time.monotonic() + most_s
    while not condition() and time.monotonic() < end_s:
        time.sleep(_POLL_S)


def first_number(variables: Iterable[str]) -> int | None:
    """Return the first of some environment variables that is an integer below 10,000,000."""
    values = (os.environ.get(name, "") for name in variables)
    return next((int(text) for text in values if re.fullmatch("[0-9]{1,7}", text)), None)
