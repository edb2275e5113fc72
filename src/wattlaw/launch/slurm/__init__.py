"""Runs as jobs of Slurm: from here they are submitted and watched, there they drive themselves."""

from wattlaw.launch.slurm.launcher import SlurmLauncher

__all__ = ["SlurmLauncher"]
