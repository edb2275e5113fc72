"""The launcher ``simulated``: runs on a simulated cluster, in the same store as measured runs."""

from wattlaw_simulator.launching.simulated_launcher import SimulatedLauncher

__all__ = ["SimulatedLauncher"]
