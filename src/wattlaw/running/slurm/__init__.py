"""The launcher ``slurm``: it submits runs as jobs and watches them; each job drives its own run."""

from wattlaw.running.slurm.slurm_launcher import SlurmLauncher

__all__ = ["SlurmLauncher"]
