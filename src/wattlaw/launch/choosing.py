"""The interface of what chooses the next runs of a campaign, in place of the plan's order."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from wattlaw.study.plan import PlannedRun

#: The start of the reason of a planned run that a decision does not need.
NOT_NEEDED = "not needed: "


@dataclass(frozen=True)
class Choice:
    """The runs to start now, and a message for the user.

    ``stopped_because`` is set once no further run is needed.
    """

    runs: Sequence[PlannedRun]
    message: str
    stopped_because: str | None = None


class Chooser(Protocol):
    """Chooses the next runs by the results of those that have ended."""

    def choose(self, pending: Sequence[PlannedRun], active: Sequence[PlannedRun]) -> Choice:
        """Return the runs to start beside the active ones, each of which is pending."""
