"""Simulates time and power of training on a GPU cluster from first principles."""

from wattlaw.common.registry import Command

SIMULATE = Command(
    "Predict time, energy and power without the hardware.",
    "wattlaw_simulator.command",
    "simulate",
    "Answers",
)
PROFILE = Command(
    "Write the profile of a workload for the simulator.",
    "wattlaw_simulator.profiling.profile_command",
    "profile",
    "Data",
)
