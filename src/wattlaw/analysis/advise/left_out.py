"""What an advice does not compare: runs by reason, and settings faster than its baseline."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from wattlaw.analysis.advise.batches import Batches
from wattlaw.analysis.advise.option import Option
from wattlaw.analysis.metrics.comparable_runs import ComparableRuns
from wattlaw.analysis.metrics.result import Result

#: Statuses of runs that have no results although they were started, or were to be.
_WITHOUT_RESULT = ("failed", "interrupted", "skipped")
#: Why a setting is not compared.
UNKNOWN_BATCH, _LOWER_BATCH = "batch of unknown quality", "batch of lower quality"
_NO_ENERGY = "no comparable energy"


@dataclass(frozen=True)
class FasterSetting(Result):
    """A setting of the job that ran faster than the baseline, and why it is not compared."""

    option: Option
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Return the option's values and the reason."""
        return self.option.to_dict() | {"reason": self.reason}


def runs_without_result(
    runs: pd.DataFrame, timed: Sequence[str] | pd.Series, workload: str
) -> dict[str, int]:
    """Return how many runs of a workload have no result, by the reason.

    ``runs`` are of ``store.schema``; ``timed`` are the ids of those that have a time.
    """
    own = runs[runs["workload"] == workload]
    counts = {name: int((own["status"] == name).sum()) for name in _WITHOUT_RESULT}
    untimed = (own["status"] == "done") & ~own["run_id"].isin(timed)
    counts["done without a measured window"] = int(untimed.sum())
    return {reason: count for reason, count in counts.items() if count}


def count_left_out(
    job: ComparableRuns, options: Sequence[Option], allowed: Sequence[Option], batches: Batches,
    *, by_energy: bool,
) -> dict[str, int]:  # fmt: skip
    """Return how many runs of the workload are not compared, by the reason.

    ``options`` are all that ran, and ``allowed`` those that are within the GPUs that may be used.
    """
    sound = [item for item in allowed if batches.allows(item)]
    counts = {
        "without a time or the epochs to train": len(job.rows) - _runs(options),
        **{f"with a {reason}": _runs(item for item in allowed if _why(item, batches) == reason)
           for reason in (UNKNOWN_BATCH, _LOWER_BATCH) if sound},
        f"with {_NO_ENERGY}": _runs(item for item in sound if by_energy and not item.energy_j),
    }  # fmt: skip
    return dict(job.left_out) | {reason: count for reason, count in counts.items() if count > 0}


def faster_settings(
    base: Option, options: Sequence[Option], compared: Sequence[Option],
    allowed: Sequence[Option], batches: Batches,
) -> tuple[FasterSetting, ...]:  # fmt: skip
    """Return the fastest setting of each reason for which one faster than ``base`` is left out."""
    by_reason: dict[str, FasterSetting] = {}
    for item in sorted(options, key=lambda item: item.train_time_s.mean):
        if item.train_time_s.mean < base.train_time_s.mean and item not in compared:
            reason = _why(item, batches) or _NO_ENERGY
            reason = reason if item in allowed else "more GPUs than allowed"
            by_reason.setdefault(reason, FasterSetting(item, reason))
    return tuple(by_reason.values())


def _why(option: Option, batches: Batches) -> str | None:
    if batches.allows(option):
        return None
    return _LOWER_BATCH if option.falls else UNKNOWN_BATCH


def _runs(options: Iterable[Option]) -> int:
    return sum(item.repeats for item in options)
