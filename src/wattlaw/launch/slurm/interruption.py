"""What becomes of a run whose attempt was ended by something else than itself."""

from wattlaw.store.record import Interruption, RunRecord, now
from wattlaw.store.run_folder import RunFolder

#: So many attempts in a row without a checkpoint are no accident any more.
MOST_IDLE = 3


def has_progress(folder: RunFolder, attempt: int) -> bool:
    """Say whether an attempt has left a checkpoint."""
    return (folder.live(attempt) / "checkpointed.json").exists()


def interrupted(record: RunRecord, folder: RunFolder, reason: str) -> RunRecord:
    """Return a run's record after its present attempt was interrupted.

    It is planned again, to go on from its checkpoint; or failed, when nothing has come of the
    last ``MOST_IDLE`` attempts.
    """
    one = Interruption(
        attempt=record.attempts,
        at=now(),
        reason=reason,
        job_id=record.site.job_id if record.site else None,
        nodes=record.site.nodes if record.site else (),
        has_progress=has_progress(folder, record.attempts),
    )
    told = (*record.interruptions, one)
    last = told[-MOST_IDLE:]
    if len(last) == MOST_IDLE and not any(each.has_progress for each in last):
        why = (
            f"interrupted {MOST_IDLE} times in a row without a checkpoint; the last time: {reason}"
        )
        changes: dict[str, object] = {"status": "failed", "reason": why, "finished_at": now()}
    else:
        changes = {"status": "planned"}
    return record.model_copy(update=changes | {"interruptions": told})
