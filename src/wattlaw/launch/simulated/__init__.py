"""The launcher ``simulated``: runs on a cluster on paper, in the same store as measured ones."""

from wattlaw.launch.simulated.launcher import SimulatedLauncher

__all__ = ["SimulatedLauncher"]
