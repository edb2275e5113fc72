"""A job's throughput among known measurements of its board and model size."""

from wattlaw.common.registry import Command

THROUGHPUT = Command(
    "Compare a throughput with known measurements.",
    "wattlaw_throughput.throughput_command",
    "throughput",
    "Answers",
)
