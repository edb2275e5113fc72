"""Slurm's queue, looked at by those who do not watch it."""

from collections.abc import Collection

from wattlaw.launch.slurm import commands
from wattlaw.launch.slurm.commands import Job
from wattlaw.launch.slurm.sbatch import as_typed, sbatch_words
from wattlaw.launch.slurm.submitted import job_name, known_tag, read_submitted, run_of
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
        tag = known_tag(store.path)
        if tag is None:
            return {}
        named = ((run_of(job.name, tag), job) for job in commands.queue() if not job.is_over)
        return {run_id: job for run_id, job in named if run_id is not None}

    def cancel(self, job_ids: Collection[str]) -> None:
        """Cancel jobs.

        Raises
        ------
        wattlaw.errors.NotAvailable, wattlaw.launch.slurm.commands.Unreachable
            As above.
        """
        commands.cancel(sorted(job_ids))

    def has(self, folder: RunFolder) -> bool:
        """Say whether a run was ever submitted.

        Raises
        ------
        wattlaw.errors.BadInput
            The file that tells it is damaged.
        """
        return read_submitted(folder) is not None

    def shown(self, launch: Launch, run: PlannedRun, store: Store) -> str:
        """Return the ``sbatch`` line of a run."""
        name = job_name(known_tag(store.path) or "new", run.run_id)
        return as_typed(sbatch_words(run.spec, store.folder(run.run_id), launch, name))
