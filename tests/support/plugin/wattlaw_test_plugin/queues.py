"""The launcher of a scheduler that is a folder: each job of a store is a file in it."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from wattlaw.common.errors import NotAvailable
from wattlaw.running.launcher import Launcher
from wattlaw.store.run_folder import RunFolder
from wattlaw.store.store import Store
from wattlaw.study.launching import Launch
from wattlaw.study.plan import PlannedRun


@dataclass(frozen=True)
class Job:
    id: str
    state: str
    reason: str = "Nights"

    @property
    def is_queued(self) -> bool:
        return self.state == "WAITS"


class Folder:
    """Jobs are ``STORE/jobs/<run id>``, which hold their state; an id is the file's path."""

    def jobs(self, store: Store) -> dict[str, Job]:
        if (store.path / "taken-down").exists():
            raise NotAvailable("the board was taken down")
        found = (store.path / "jobs").glob("*")
        return {path.name: Job(str(path), path.read_text()) for path in found}

    def cancel(self, job_ids: Collection[str]) -> None:
        for job_id in job_ids:
            Path(job_id).unlink()

    def was_submitted(self, folder: RunFolder) -> bool:
        return (folder.path / "given").exists()

    def submission_command(self, launch: Launch, run: PlannedRun, store: Store) -> str:
        return f"pin {run.run_id} to the board of {launch.hardware}"


class BoardLauncher(Launcher):
    """Only to be looked at."""

    queue = Folder()

    @classmethod
    def examine(cls, launch: Launch) -> Launcher:
        return cls()
