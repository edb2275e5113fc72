"""The two studies behind wattlaw: their networks, claims and published figures."""

from wattlaw.common.registry import Command

CLAIMS = Command(
    "Test published findings on your own runs.",
    "wattlaw_papers.claims_command",
    "claims",
    "Answers",
)
