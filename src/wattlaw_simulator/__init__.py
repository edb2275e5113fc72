"""Simulates time and power of training on a GPU cluster from first principles."""

from wattlaw.common.registry import Command

SIMULATE = Command(
    "Predict time, energy and power without the hardware.",
    "wattlaw_simulator.command",
    "simulate",
)
