"""A workload that draws while it trains, and takes the time that a test needs to warn it."""

import dataclasses

from wattlaw.workloads import digits

ENTRY = dataclasses.replace(
    digits.ENTRY,
    name="digits-dropout",
    factory="wattlaw_test_dropout.net:DropoutDigits",
    work=None,
)
