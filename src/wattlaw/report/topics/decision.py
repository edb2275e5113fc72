"""Decisions of studies with ``decide`` as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattlaw import formatting as fmt
from wattlaw.report.topics.prediction import label

if TYPE_CHECKING:
    from wattlaw.analysis.decision import Decision


def decision_text(decision: Decision) -> str:
    """Return the state of a decision in one line."""
    if decision.setting is None or decision.probability is None or decision.expected_regret is None:
        text = "decision: no setting is known yet"
    else:
        text = (
            f"decision: {label(decision.setting)}: within {100 * decision.tolerance:g} % of the "
            f"best with probability {decision.probability:.2f}, expected regret "
            f"{100 * decision.expected_regret:.2g} %; {fmt.number(decision.gpu_hours_spent)} "
            "GPU-hours"
        )
    if decision.gpu_hours_saved is not None:
        saved, grid = fmt.number(decision.gpu_hours_saved), fmt.number(decision.gpu_hours_grid)
        text += f" spent, {saved} of {grid} saved"
    return (
        text if decision.stopped_because is None else f"{text}; stops: {decision.stopped_because}"
    )
