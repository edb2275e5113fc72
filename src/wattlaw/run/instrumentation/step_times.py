"""How long steps take, and how steady they are."""

import math
from collections.abc import Collection

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

#: A step of this many medians is long. It contains a pause if it also takes this much longer than
#: the median, or if it has an evaluation and takes this many medians of the others.
_LONG, _PAUSE_S, _EVALUATION = 5.0, 0.25, 1.05
#: Long steps and drifts above these shares are reported; a drift also is that many of its standard
#: errors. Fewer steps show neither.
_LONG_SHARE, _DRIFT, _ERRORS, _LEAST_STEPS = 0.05, 0.05, 4.0, 30
#: Standard deviation over median absolute deviation, and standard error of a median of n values
#: over standard deviation / sqrt(n), both of normal values.
_SIGMA_PER_MAD, _MEDIAN_ERROR = 1.4826, 1.2533


def step_time_columns(steps_s: Floats) -> dict[str, float | None]:
    """Return mean, median, 95th percentile and coefficient of variation; None without a step."""
    if not len(steps_s):
        names = ("step_time_mean_s", "step_time_p50_s", "step_time_p95_s", "step_time_cv")
        return dict.fromkeys(names)
    mean_s = float(steps_s.mean())
    return {
        "step_time_mean_s": mean_s,
        "step_time_p50_s": float(np.median(steps_s)),
        "step_time_p95_s": float(np.percentile(steps_s, 95)),
        "step_time_cv": float(steps_s.std(ddof=1) / mean_s)
        if len(steps_s) > 1 and mean_s > 0
        else None,
    }


def contains_pause(steps_s: Floats, evaluated: Mask | None) -> Mask:
    """Say which steps contain a pause; where most have an evaluation, it is a part of a step."""
    is_usual = np.isfinite(steps_s)
    if evaluated is not None and evaluated[is_usual].mean() < 0.5:
        is_usual &= ~evaluated
    median_s = float(np.median(steps_s[is_usual]))
    is_long: Mask = steps_s > max(_LONG * median_s, median_s + _PAUSE_S)
    return is_long | ~is_usual & (steps_s > _EVALUATION * median_s)


def drift(steps_s: Floats) -> float | None:
    """Return the relative change of the median from the first to the last third, if it is clear."""
    if len(steps_s) < _LEAST_STEPS:
        return None
    third = len(steps_s) // 3
    first, last = steps_s[:third], steps_s[-third:]
    before_s = float(np.median(first))
    change_s = float(np.median(last)) - before_s
    error_s = math.hypot(_median_error(first), _median_error(last))
    is_clear = abs(change_s) > max(_DRIFT * before_s, _ERRORS * error_s)
    return change_s / before_s if is_clear else None


def steadiness_notes(steps_s: Floats, left_out: Collection[int] = ()) -> list[str]:
    """Return a note for long steps and one for a drift of the times of a window's steps.

    Steps of the numbers ``left_out`` are not long: the first of an epoch waits for its samples.
    """
    kept = np.delete(steps_s, [number for number in left_out if number < len(steps_s)])
    if len(kept) < _LEAST_STEPS:
        return []
    notes = []
    median_s = float(np.median(kept))
    long_s = kept[kept > _LONG * median_s]
    share = float((long_s - median_s).sum() / steps_s.sum())
    if len(long_s) and share > _LONG_SHARE:
        notes.append(
            f"not steady: {len(long_s)} of {len(kept):,} steps took more than {_LONG:g} times "
            f"the median, {share:.0%} of the time"
        )
    change = drift(kept)
    if change is not None:
        direction = "slower" if change > 0 else "faster"
        notes.append(
            f"not steady: the last third of {len(kept):,} steps is {abs(change):.0%} {direction} "
            "than the first (median)"
        )
    return notes


def _median_error(values: Floats) -> float:
    """Return the standard error of a median, from the median absolute deviation."""
    deviation = float(np.median(np.abs(values - np.median(values))))
    return _MEDIAN_ERROR * _SIGMA_PER_MAD * deviation / math.sqrt(len(values))
