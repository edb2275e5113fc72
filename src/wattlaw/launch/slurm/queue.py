"""Slurm's queue, looked at by those who do not watch it."""

from collections.abc import Collection

from wattlaw.launch.slurm import commands
from wattlaw.launch.slurm.commands import Job
from wattlaw.launch.slurm.sbatch import sbatch_arguments, shell_line
from wattlaw.launch.slurm.submission import existing_tag, job_name, read_submission, run_id_of
from wattlaw.store.run_folder import RunFolder
from wattlaw.store.store import Store
from wattlaw.study.launching import Launch
from wattlaw.study.plan import PlannedRun


class SlurmQueue:
    """The seam ``launch.queue.Queue``, by ``squeue`` and ``scancel``."""

    def jobs(self, store: Store) -> dict[str, Job]:
        """Return the jobs of a store that have not ended; one that never had any asks nobody.

        Raises
        ------
        wattlaw.errors.NotAvailable
            There is no Slurm here.
        wattlaw.launch.slurm.commands.Unreachable
            Its controller does not answer.
        """
        tag = existing_tag(store.path)
        if tag is None:
            return {}
        named = ((run_id_of(job.name, tag), job) for job in commands.queue() if not job.is_over)
        return {run_id: job for run_id, job in named if run_id is not None}

    def cancel(self, job_ids: Collection[str]) -> None:
        """Cancel jobs.

        Raises
        ------
        wattlaw.errors.NotAvailable, wattlaw.launch.slurm.commands.Unreachable
            As above.
        """
        commands.cancel(sorted(job_ids))

    def was_submitted(self, folder: RunFolder) -> bool:
        """Say whether a run was ever submitted.

        Raises
        ------
        wattlaw.errors.BadInput
            The file that tells it is damaged.
        """
        return read_submission(folder) is not None

    def submission_command(self, launch: Launch, run: PlannedRun, store: Store) -> str:
        """Return the ``sbatch`` line of a run."""
        name = job_name(existing_tag(store.path) or "new", run.run_id)
        return shell_line(sbatch_arguments(run.spec, store.folder(run.run_id), launch, name))
