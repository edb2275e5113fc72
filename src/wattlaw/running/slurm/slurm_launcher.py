"""The launcher ``slurm``: one job per run, with a limit on the jobs in the queue.

Jobs store their runs themselves, so this process may end at any moment. A later one, also on
another login node, recognises the jobs by their names and by the files in the runs' folders.
"""

import contextlib
import shlex
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, Self

from wattlaw.common.errors import BadInput, NotAvailable, WattlawError, one_line
from wattlaw.common.files import locked, open_regular, read_end
from wattlaw.common.text import collapse_whitespace
from wattlaw.running.boards import Board, memory_warnings, named_board, too_large_reason
from wattlaw.running.finish import finish
from wattlaw.running.launcher import Allocation, Ended, Launcher, ResourcesBusy
from wattlaw.running.slurm import commands
from wattlaw.running.slurm.commands import Job, Unreachable
from wattlaw.running.slurm.submission import (
    ENDED,
    INTERRUPTED,
    REASONS,
    Submission,
    by_run,
    claim_path,
    existing_tag,
    has_progress,
    interrupted,
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
_LONGEST_INTERVAL_S = 600.0
_CANCEL_TIMEOUT_S, _CANCEL_POLL_S = 60.0, 1.0
#: States of a job that was ended by something else than the run.
_LOST_STATES = {"NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "REVOKED"}
_TIMEOUT_STATES = ("TIMEOUT", "DEADLINE")
_STATE_REASONS = {
    "TIMEOUT": "reached its time limit before it saved a checkpoint; increase "
    "launch.slurm.time or launch.slurm.warn_s",
    "OUT_OF_MEMORY": "ran out of memory on its nodes; request more (launch.slurm.options: mem)",
}
_CANCELLED = "cancelled by 'wattlaw cancel'"
_LAST_LINES, _LONGEST = 50, 200


class QueuePoller:
    """The jobs of one store, which have its tag in their names, by the queue as it was read last.
    While Slurm does not respond, the intervals between readings grow."""

    def __init__(self, tag: str, poll_s: float) -> None:
        self.tag, self._poll_s = tag, poll_s
        self.number = 0  # how often the queue has been read
        self.error: str | None = None  # of the last poll
        self.jobs: dict[str, Job] = {}
        self._next_s, self._interval_s, self._failures = 0.0, poll_s, 0

    def poll(self) -> None:
        if time.monotonic() < self._next_s:
            return
        try:
            # Of the jobs of a run, an active one precedes ended ones, a later one earlier ones.
            jobs = sorted(commands.queue(), key=lambda job: (not job.is_over, len(job.id), job.id))
            self.jobs = by_run(jobs, self.tag)
            self.number += 1
            self._failures, self.error = 0, None
        except (Unreachable, NotAvailable) as error:
            self._failures += 1
            self.error = str(error)
        longest_s = max(_LONGEST_INTERVAL_S, self._poll_s)
        self._interval_s = min(self._poll_s * 2 ** min(self._failures, 20), longest_s)
        self._next_s = time.monotonic() + self._interval_s

    @property
    def is_fresh(self) -> bool:
        return self.number > 0 and self.error is None

    def active(self) -> dict[str, Job]:
        return {run_id: job for run_id, job in self.jobs.items() if not job.is_over}

    def status_message(self) -> str | None:
        if self.error is not None:
            return f"Slurm does not respond: polling every {self._interval_s:.0f} s ({self.error})"
        jobs = self.active().values()
        states = Counter(job.state.lower() for job in jobs)
        reasons = Counter(job.reason for job in jobs if job.is_queued and job.reason != "None")
        counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        reason = f" ({reasons.most_common(1)[0][0]})" if reasons else ""
        return f"Slurm: {counts}{reason}" if jobs else None


class SlurmAttempt:
    """A run whose job is queued, running, or has ended. The job writes the run's record; this class
    does for a job that was cancelled or lost, whose run is planned again."""

    def __init__(
        self, launcher: "SlurmLauncher", record: RunRecord, folder: RunFolder, job_id: str | None
    ) -> None:
        self._launcher, self._poller, self._seen = launcher, launcher.poller, launcher.poller.number
        self._record, self._folder = record, folder
        self._job_id = job_id  # None if only the job's name is known
        self._over_since_s: float | None = None
        self._ended: Ended | None = None

    def poll(self) -> Ended | None:
        self._poller.poll()
        if self._ended is None and self._poller.number > self._seen and self._poller.is_fresh:
            self._seen = self._poller.number
            try:
                record = self._advance()
            except (WattlawError, OSError):  # a temporary failure of the file system
                return None
            self._ended = Ended(record.reason, record=record) if record is not None else None
        return self._ended

    def stop(self) -> None:
        record = self._folder.read()
        if self._ended is not None or record is None:
            return
        if record.status not in ENDED and self._job_id is not None:
            # 'wattlaw cancel' reports it if Slurm does not respond.
            with contextlib.suppress(Unreachable, NotAvailable):
                commands.cancel([self._job_id])
                end_s = time.monotonic() + _CANCEL_TIMEOUT_S
                while time.monotonic() < end_s and any(
                    job.id == self._job_id and not job.is_over for job in commands.queue()
                ):
                    time.sleep(_CANCEL_POLL_S)
            record = self._folder.read() or record  # the run may have ended meanwhile
        if record.status not in ENDED:
            record = self._failed(record, _CANCELLED, interrupted=True)
        self._ended = Ended(record.reason, record=record)

    def _advance(self) -> RunRecord | None:
        """Return the record of a run whose job has ended; None while the job is active."""
        job = self._poller.jobs.get(self._record.run_id)
        if job is not None and not job.is_over:
            self._job_id, self._over_since_s = job.id, None
            return None
        record = self._folder.read()
        if record is None or record.status in ENDED:
            return record
        if job is not None and self._job_id not in (None, job.id):
            job = None  # a job of an earlier attempt
        self._over_since_s = self._over_since_s or time.monotonic()
        if time.monotonic() - self._over_since_s < self._launcher.settle_s:
            return None  # files of the job may not be visible yet
        return self._handle_unrecorded_end(record, job)

    def _handle_unrecorded_end(self, record: RunRecord, job: Job | None) -> RunRecord:
        if job is None:
            last = record.interruptions[-1] if record.interruptions else None
            if record.status == "planned" and last and last.job_id == self._job_id:
                return self._plan_again(record)  # the job recorded its interruption
            gone = f"job {self._job_id} is no longer in the queue"
            return self._failed(record, f"{gone}; sacct may say why", interrupted=True)
        # With a short time limit, SIGUSR1 may come before the driver handles it.
        was_interrupted = job.exit_code == INTERRUPTED or job.signal == signal.SIGUSR1
        name, is_timeout = f"job {job.id}", job.state in _TIMEOUT_STATES
        if job.state == "CANCELLED":
            by_store = self._launcher.is_cancelled()
            cancelled = _CANCELLED if by_store else f"{name} was cancelled"
            return self._failed(record, cancelled, interrupted=by_store)
        why = None
        if job.state in _LOST_STATES or (was_interrupted and not is_timeout):
            why = "interrupted" if was_interrupted else job.state
        elif is_timeout and has_progress(self._folder, record.attempts):
            why = "time limit reached"
        if why is None:
            reason = _STATE_REASONS.get(job.state) or REASONS.get(job.exit_code or 0)
            reason = reason or f"ended {job.state} with exit code {job.exit_code}"
            return self._failed(record, f"{name}: {reason}; {self._last_log_line()}")
        if record.status == "running":
            record = interrupted(record, self._folder, f"{name}: {why}")
            self._folder.write(record)
        return record if record.status == "failed" else self._plan_again(record)

    def _plan_again(self, record: RunRecord) -> RunRecord:
        Submission.path(self._folder).unlink(missing_ok=True)  # of the job that was lost
        return record

    def _last_log_line(self) -> str:
        try:
            lines = read_end(self._folder.log_path).split("\n")
        except OSError:
            return (
                f"there is no {self._folder.log_path}: the store must be on a file system that "
                "login node and compute nodes share"
            )
        printed = [collapse_whitespace(line) for line in lines[-_LAST_LINES:] if line.strip()]
        last = printed[-1][:_LONGEST] if printed else "the log is empty"
        return f"{last} (log: {self._folder.log_path})"

    def _failed(self, record: RunRecord, reason: str, *, interrupted: bool = False) -> RunRecord:
        record = finish(record, self._folder, reason)
        record = record.model_copy(update={"interrupted": interrupted})
        try:
            self._folder.write(record)
        except OSError as error:  # the campaign reports the run in any case
            reason = f"{reason} (not recorded: {one_line(error)})"
            return record.model_copy(update={"reason": reason})
        return record


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
        job = self.poller.jobs.get(record.run_id)
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
