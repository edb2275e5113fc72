"""The launcher ``slurm``: one job per run, with a limit on the jobs in the queue.

Jobs store their runs themselves, so this process may end at any moment. A later one, also on
another login node, recognises the jobs by their names and by the files in the runs' folders.
"""

import shlex
import shutil
import sys
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, Self

from wattlaw.common.errors import BadInput, NotAvailable
from wattlaw.common.files import locked, open_regular
from wattlaw.running.boards import Board, memory_warnings, named_board, too_large_reason
from wattlaw.running.launcher import Allocation, Launcher, ResourcesBusy
from wattlaw.running.slurm import commands
from wattlaw.running.slurm.attempt import QueuePoller, SlurmAttempt
from wattlaw.running.slurm.commands import Job, Unreachable
from wattlaw.running.slurm.submission import (
    ENDED,
    Submission,
    by_run,
    claim_path,
    existing_tag,
    job_name,
    read_submission,
    sbatch_arguments,
    store_tag,
    workers_per_node,
    write_script,
)
from wattlaw.store.record import RunRecord, now
from wattlaw.store.run_folder import RunFolder
from wattlaw.store.store import Store
from wattlaw.study.launching import Launch
from wattlaw.study.model import RunSpec, Study
from wattlaw.study.plan import PlannedRun
from wattlaw.workloads import catalogue

#: After this many refused jobs in a row no more jobs are submitted.
_MOST_REFUSALS = 3


class SlurmQueue:
    def jobs(self, store: Store) -> dict[str, Job]:
        tag = existing_tag(store.path)
        if tag is None:
            return {}
        return by_run((job for job in commands.queue() if not job.is_over), tag)

    def cancel(self, job_ids: Collection[str]) -> None:
        commands.cancel(sorted(job_ids))

    def was_submitted(self, folder: RunFolder) -> bool:
        return read_submission(folder) is not None

    def submission_command(self, launch: Launch, run: PlannedRun, store: Store) -> str:
        name = job_name(existing_tag(store.path) or "new", run.run_id)
        arguments = sbatch_arguments(run.spec, store.folder(run.run_id), launch, name)
        return shlex.join(["sbatch", *arguments])


class SlurmLauncher(Launcher):
    queue = SlurmQueue()

    def __init__(self, launch: Launch, store: Path) -> None:
        self._launch, self._store = launch, store
        #: Until a file that is written on one node is visible on another.
        self.settle_s = launch.slurm.settle_s
        self._turn: BinaryIO | None = None
        self._turn_tried_at = 0
        #: Jobs submitted since the last poll of the queue, and whether Slurm refuses more now.
        self._submitted_at, self._submitted, self._is_full = 0, 0, False
        self._watched: set[str] = set()
        self._cancelled_before = Store(store).cancelled_at()
        self._refused_in_a_row = 0

    @cached_property
    def poller(self) -> QueuePoller:
        return QueuePoller(store_tag(self._store), self._launch.slurm.poll_s)

    @classmethod
    def resolve(cls, study: Study) -> Study:
        if study.launch.gpus_per_node is None:
            raise BadInput(
                "launch.gpus_per_node is required with slurm: the number of workers (GPUs) of a "
                "node"
            )
        return study

    @classmethod
    def open(cls, launch: Launch, store: Path) -> Self:
        if shutil.which("squeue") is None:
            raise NotAvailable(
                "Slurm's commands (squeue, sbatch) are not installed here; start this on a login "
                "node of the cluster, or with --launch local"
            )
        Store(store).create()
        launcher = cls(launch, store)
        launcher.poller.poll()
        if not launcher.poller.is_fresh:
            raise NotAvailable(f"{launcher.poller.error}; is this a login node of the cluster?")
        return launcher

    @classmethod
    def examine(cls, launch: Launch) -> Self:
        return cls(launch, Path())

    def unsupported_reason(self, spec: RunSpec) -> str | None:
        try:
            workers = workers_per_node(spec)
        except BadInput as error:
            return str(error)
        most = self._launch.gpus_per_node
        if most is not None and workers > most:
            return f"needs {workers} GPUs on each node; launch.gpus_per_node is {most}"
        workload = spec.workload
        if spec.nodes > 1 and workload.launch_with in ("mpirun", "srun"):
            return f"launch_with {workload.launch_with} works on one node, not {spec.nodes}"
        if spec.nodes > 1 and workload.progress is not None:
            return f"progress is read on one node, not {spec.nodes}"
        return too_large_reason(spec, self._boards)

    def warnings(self, specs: Sequence[RunSpec]) -> Iterator[str]:
        return memory_warnings(specs, self._boards)

    def missing(self, study: Study) -> list[str]:
        """Return what the jobs lack if they run this Python, in the environment that it has now."""
        slurm = study.launch.slurm
        if slurm.setup or slurm.python not in (None, sys.executable):
            return []
        return [f"{text} ({sys.executable})" for text in catalogue.missing_packages(study)]

    @cached_property
    def _boards(self) -> list[Board]:
        """The board that the study's label or else the type in ``gres`` names; empty without."""
        names = (self._launch.hardware or "", (self._launch.slurm.gres or "").partition(":")[2])
        return list(filter(None, map(named_board, filter(None, names))))[:1]

    def allocate(self, spec: RunSpec) -> Allocation | None:  # noqa: ARG002 - each takes one job's room
        """One campaign at a time submits jobs for a store, so that ``max_queued`` is kept.

        Raises ``NotAvailable`` if the site has refused several jobs in a row.
        """
        if self._refused_in_a_row >= _MOST_REFUSALS:
            raise NotAvailable(
                f"sbatch has refused {_MOST_REFUSALS} jobs in a row, the others were not tried; "
                f"see 'wattlaw status {self._store}' and correct launch.slurm"
            )
        self.poller.poll()
        if self.poller.number != self._submitted_at:
            self._submitted_at, self._submitted, self._is_full = self.poller.number, 0, False
        if not self.poller.is_fresh or self._is_full or not self._has_turn():
            return None
        in_queue = len(self.poller.active()) + self._submitted
        return Allocation() if in_queue < self._launch.slurm.max_queued else None

    def start(self, record: RunRecord, folder: RunFolder, allocation: Allocation) -> SlurmAttempt:
        """Raises ``BadInput`` if the site refuses the job, ``ResourcesBusy`` if it may be later."""
        allocation.release()
        submission = Submission(launch=self._launch, at=now())
        submission.write(folder)
        write_script(folder, self._launch)
        claim_path(folder).unlink(missing_ok=True)  # of an earlier job
        name = job_name(self.poller.tag, record.run_id)
        try:
            job_id = commands.submit(sbatch_arguments(record.spec, folder, self._launch, name))
        except (Unreachable, ResourcesBusy) as error:  # the job may be in the queue all the same
            self._is_full = True
            raise ResourcesBusy(str(error)) from None
        except NotAvailable as error:
            self._refused_in_a_row += 1
            raise BadInput(f"{error} (launch.slurm)") from None
        self._submitted += 1
        self._refused_in_a_row = 0
        submission.model_copy(update={"job_id": job_id}).write(folder)
        return self._attempt(record, folder, job_id)

    def detached_run_ids(self) -> Collection[str]:
        self.poller.poll()
        return self.poller.active().keys() - self._watched

    def reattach(self, record: RunRecord, folder: RunFolder) -> SlurmAttempt | None:
        if record.status in ENDED:
            Submission.path(folder).unlink(missing_ok=True)  # of an ended job
            return None
        submission = read_submission(folder)
        job = self.poller.job(record.run_id)
        if submission is None or (submission.job_id is None and job is None):
            return None  # an earlier campaign ended before it had submitted the job
        return self._attempt(record, folder, submission.job_id or (job.id if job else None))

    def status_message(self) -> str | None:
        return self.poller.status_message()

    def close(self) -> None:
        """Let other campaigns submit jobs."""
        if self._turn is not None:
            self._turn.close()
            self._turn = None

    def _attempt(self, record: RunRecord, folder: RunFolder, job_id: str | None) -> SlurmAttempt:
        self._watched.add(record.run_id)
        return SlurmAttempt(self, record, folder, job_id)

    def is_cancelled(self) -> bool:
        return Store(self._store).was_cancelled_since(self._cancelled_before)

    def _has_turn(self) -> bool:
        if self._turn is None and self._turn_tried_at != self.poller.number:
            self._turn_tried_at = self.poller.number
            file = open_regular(self._store / "slurm-turn", append=True)
            if not locked(file):
                file.close()
                return False
            self._turn = file
        return self._turn is not None
