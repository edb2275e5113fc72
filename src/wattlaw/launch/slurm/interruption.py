"""Interruptions: attempts that were ended by something else than the run."""

from wattlaw.store.record import Interruption, RunRecord, now
from wattlaw.store.run_folder import RunFolder

#: A run fails after this many interruptions in a row without a checkpoint.
MOST_IDLE = 3


def has_progress(folder: RunFolder, attempt: int) -> bool:
    """Say whether an attempt has saved a checkpoint."""
    return (folder.live(attempt) / "checkpointed.json").exists()


def interrupted(record: RunRecord, folder: RunFolder, reason: str) -> RunRecord:
    """Return a run's record after its present attempt was interrupted.

    The run is planned again and continues from its checkpoint. It has failed if none of the last
    ``MOST_IDLE`` attempts saved a checkpoint.
    """
    interruption = Interruption(
        attempt=record.attempts,
        at=now(),
        reason=reason,
        job_id=record.site.job_id if record.site else None,
        nodes=record.site.nodes if record.site else (),
        has_progress=has_progress(folder, record.attempts),
    )
    interruptions = (*record.interruptions, interruption)
    last = interruptions[-MOST_IDLE:]
    changes: dict[str, object] = {"status": "planned"}
    if len(last) == MOST_IDLE and not any(each.has_progress for each in last):
        reason = f"interrupted {MOST_IDLE} times in a row without a checkpoint; last: {reason}"
        changes = {"status": "failed", "reason": reason, "finished_at": now()}
    return record.model_copy(update=changes | {"interruptions": interruptions})
