"""The pages of a proposal for compute time: scaling, the planned campaign, and the method."""

from wattlaw.common.registry import Command

PROPOSAL = Command(
    "Write scaling and campaign for a compute-time proposal.",
    "wattlaw_proposal.proposal_command",
    "proposal",
    "Answers",
)
