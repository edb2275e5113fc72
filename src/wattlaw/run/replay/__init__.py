"""The launcher ``replay``: runs from a table of measurements made elsewhere, in no time."""

from wattlaw.run.replay.launcher import ReplayLauncher

__all__ = ["ReplayLauncher"]
