"""The launcher ``slurm``: one job per run, few in the queue at a time, none lost or doubled.

Jobs bring their runs home themselves, so this process may end at any moment; the next one, also
on another login node, finds the jobs by their names and by what the runs' folders tell.
"""

import contextlib
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO, Self

from wattlaw.errors import BadInput, NotAvailable
from wattlaw.files import locked, open_regular
from wattlaw.launch.launcher import ResourcesBusy
from wattlaw.launch.slurm import commands
from wattlaw.launch.slurm.attempt import SlurmAttempt
from wattlaw.launch.slurm.commands import Unreachable
from wattlaw.launch.slurm.energy import record_energies
from wattlaw.launch.slurm.poller import QueuePoller
from wattlaw.launch.slurm.queue import SlurmQueue
from wattlaw.launch.slurm.sbatch import sbatch_arguments, workers_per_node, write_script
from wattlaw.launch.slurm.submission import (
    Submission,
    claim_path,
    job_name,
    read_submission,
    store_tag,
    submission_path,
    write_submission,
)
from wattlaw.store.record import RunRecord, now
from wattlaw.store.run_folder import RunFolder
from wattlaw.store.store import Store
from wattlaw.study.launching import Launch
from wattlaw.study.model import RunSpec

#: After so many refusals in a row it is the study that must be mended.
_MOST_REFUSALS = 3


class SlurmLauncher:
    """Submits runs of one store as jobs, and watches them with one question for all.

    Parameters
    ----------
    launch
        Settings of the study.
    store
        The store's folder, which all nodes share.
    """

    is_durable = True
    queue = SlurmQueue()

    def __init__(self, launch: Launch, store: Path) -> None:
        self._launch, self._store = launch, store
        self._tag = store_tag(store)
        self._poller = QueuePoller(self._tag, launch.slurm.poll_s)
        self._turn: BinaryIO | None = None
        self._turn_tried_at = 0
        #: Submitted since the queue was last seen, and whether it takes more now.
        self._submitted_at, self._submitted, self._is_full = 0, 0, False
        self._watched: set[str] = set()
        self._doubtful: dict[str, int] = {}
        self._cancelled_before = Store(store).cancelled_at()
        self._refused_in_a_row = 0

    @classmethod
    def resolve(cls, launch: Launch) -> Launch:
        """Return it as it is, once it says how many GPUs a node has.

        Raises
        ------
        BadInput
            It does not.
        """
        if launch.gpus_per_node is None:
            raise BadInput(
                "launch.gpus_per_node: not given; needed with slurm: how many workers (GPUs) a "
                "node takes"
            )
        return launch

    @classmethod
    def open(cls, launch: Launch, store: Path) -> Self:
        """See the queue; raises ``NotAvailable`` where there is no Slurm, or it does not answer."""
        if shutil.which("squeue") is None:
            told = "Slurm's commands (squeue, sbatch) are not here; start this on a login node"
            raise NotAvailable(f"{told} of the cluster, or with --launch local")
        Store(store).create()
        launcher = cls(launch, store)
        launcher._poller.look()
        if not launcher._poller.is_fresh:
            raise NotAvailable(f"{launcher._poller.trouble}; is this a login node of the cluster?")
        return launcher

    def unsupported_reason(self, spec: RunSpec) -> str | None:
        """Return why a run can never be a job, or None."""
        try:
            workers_per_node(spec)
        except BadInput as error:
            return str(error)
        return None

    def allocate(self, spec: RunSpec) -> "Allocation | None":  # noqa: ARG002 - each takes one job's room
        """Take room for a job while fewer than ``max_queued`` are in the queue.

        One campaign at a time submits for a store: several could not count together.

        Raises
        ------
        NotAvailable
            The site has refused one job after the other; the rest are not tried.
        """
        if self._refused_in_a_row >= _MOST_REFUSALS:
            told = f"sbatch has refused {_MOST_REFUSALS} jobs in a row, the others were not tried"
            raise NotAvailable(f"{told}; see 'wattlaw status {self._store}', mend launch.slurm")
        self._poller.look()
        if self._poller.number != self._submitted_at:
            self._submitted_at, self._submitted, self._is_full = self._poller.number, 0, False
        if not self._poller.is_fresh or self._is_full or not self._has_turn():
            return None
        in_queue = len(self._poller.active()) + self._submitted
        return Allocation() if in_queue < self._launch.slurm.max_queued else None

    def start(self, record: RunRecord, folder: RunFolder, allocation: "Allocation") -> SlurmAttempt:
        """Submit a run's job.

        Raises
        ------
        BadInput
            The site refuses it.
        ResourcesBusy
            Slurm does not answer, or takes no more jobs of this user now.
        """
        allocation.release()
        if self._doubtful.get(record.run_id) == self._poller.number:
            raise ResourcesBusy("whether it was submitted is not known until Slurm answers again")
        try:
            job_id = self.submit(record, folder)
        except Unreachable as error:
            self._doubtful[record.run_id] = self._poller.number
            self._is_full = True
            raise ResourcesBusy(str(error)) from None
        except ResourcesBusy:
            self._is_full = True
            raise
        except NotAvailable as error:
            self._refused_in_a_row += 1
            raise BadInput(f"{error} (launch.slurm)") from None
        self._refused_in_a_row = 0
        return self._attempt(record, folder, job_id)

    def submit(self, record: RunRecord, folder: RunFolder) -> str:
        """Submit the job of a run, whatever was before, and return its id.

        Raises
        ------
        NotAvailable, ResourcesBusy, Unreachable
            As ``commands.submit``.
        """
        told = Submission(launch=self._launch, at=now())
        write_submission(folder, told)
        write_script(folder, self._launch)
        claim_path(folder).unlink(missing_ok=True)
        name = job_name(self._tag, record.run_id)
        job_id = commands.submit(sbatch_arguments(record.spec, folder, self._launch, name))
        self._submitted += 1
        write_submission(folder, told.model_copy(update={"job_id": job_id}))
        return job_id

    def detached_run_ids(self) -> Collection[str]:
        """Return the runs whose jobs are in the queue and that we do not watch."""
        self._poller.look()
        return self._poller.active().keys() - self._watched

    def reattach(self, record: RunRecord, folder: RunFolder) -> SlurmAttempt | None:
        """Return the attempt of a run that was submitted and has told no end."""
        if record.status in ("done", "failed", "skipped"):
            submission_path(folder).unlink(missing_ok=True)  # of a job that is over
            return None
        told = read_submission(folder)
        job = self._poller.job(record.run_id)
        if told is None or (told.job_id is None and job is None):
            return None  # it was about to be submitted, and never was
        return self._attempt(record, folder, told.job_id or (job.id if job else None))

    def status_message(self) -> str | None:
        """Return how the jobs stand."""
        return self._poller.status_message()

    def close(self) -> None:
        """Let other campaigns submit; ask once for the energy that the site has measured."""
        with contextlib.suppress(Unreachable, NotAvailable):
            record_energies(Store(self._store))
        if self._turn is not None:
            self._turn.close()
            self._turn = None

    def _attempt(self, record: RunRecord, folder: RunFolder, job_id: str | None) -> SlurmAttempt:
        self._watched.add(record.run_id)
        settle_s = self._launch.slurm.settle_s
        return SlurmAttempt(
            *(record, folder, job_id, self._poller, settle_s),
            submit=self._submit_again,
            is_cancelled=self._is_cancelled,
        )

    def _is_cancelled(self) -> bool:
        return Store(self._store).was_cancelled_since(self._cancelled_before)

    def _submit_again(self, record: RunRecord, folder: RunFolder) -> str:
        if self.allocate(record.spec) is None:
            raise ResourcesBusy("the queue is full")
        return self.submit(record, folder)

    def _has_turn(self) -> bool:
        """Say whether this campaign is the one that submits for the store."""
        if self._turn is None and self._turn_tried_at != self._poller.number:
            self._turn_tried_at = self._poller.number
            file = open_regular(self._store / "slurm-turn", append=True)
            if not locked(file):
                file.close()
                return False
            self._turn = file
        return self._turn is not None


class Allocation:
    """Room for one job, counted by the launcher when it is submitted."""

    def release(self) -> None:
        """Nothing is held."""
