"""The global batch that ran, by the samples of each optimizer step."""

from collections.abc import Mapping

#: A usual number of samples is that of at least this share of the steps, so that the last batches
#: of epochs, which may be smaller, do not count, even where an epoch has two steps. If fewer than
#: ``_MOST`` have it, it may be one of several sizes (buckets) whose mean is the batch.
_USUAL, _MOST, _LEAST_STEPS = 0.45, 0.6, 3
_SAME = 0.02
#: If more steps are without a sample, several share a batch, or batches are fetched far ahead.
_MOST_EMPTY = 0.1


def batch_that_ran(steps_by_samples: Mapping[int, int], declared: int | None) -> int | None:
    """Return the global batch that ran, where it clearly is not the declared one; else None.

    Parameters
    ----------
    steps_by_samples
        How many optimizer steps had a number of samples, of all ranks and with gradient
        accumulation.
    declared
        The global batch of the setting, None if it has none.

    Examples
    --------
    >>> batch_that_ran({48: 30, 6: 10}, 128)
    48
    >>> batch_that_ran({128: 30, 22: 30}, 128) is None
    True
    """
    steps = sum(steps_by_samples.values())
    usual = {n: count for n, count in steps_by_samples.items() if count >= _USUAL * steps}
    if declared is None or steps < _LEAST_STEPS or declared in usual or not usual:
        return None
    if steps_by_samples.get(0, 0) > _MOST_EMPTY * steps:
        return None
    ran = max(usual)
    mean = sum(samples * count for samples, count in steps_by_samples.items()) / steps
    is_mean = abs(mean - declared) <= _SAME * declared
    return None if is_mean and usual[ran] < _MOST * steps else ran


def other_batch(
    steps_by_samples: Mapping[int, int], declared: int | None
) -> tuple[int | None, tuple[str, ...]]:
    """Return the batch of ``batch_that_ran``, and the note of the run where there is one."""
    ran = batch_that_ran(steps_by_samples, declared)
    if ran is None:
        return None, ()
    text = f"trained with a global batch of {ran:,} instead of the declared {declared:,}"
    return ran, (f"{text}; results use {ran:,}",)
