"""Workloads for tests: one that draws and takes its time, and one with a rank that fails."""

import dataclasses

from wattlaw.workloads import digits

ENTRY = dataclasses.replace(
    digits.ENTRY, name="digits-dropout", factory="wattlaw_test_dropout.net:DropoutDigits", work=None
)
FAILING = dataclasses.replace(
    ENTRY, name="digits-failing", factory="wattlaw_test_dropout.failing:FailingDigits"
)
