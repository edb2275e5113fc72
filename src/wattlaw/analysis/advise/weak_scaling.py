"""Both answers where the global batch grows with the workers: weak scaling and strong scaling."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from wattlaw.analysis.advise.option import Option, Quantity
from wattlaw.analysis.metrics.result import Result

#: Epochs of unknown length that take at least this share of the time on the fewest workers may have
#: more samples on more workers.
_HARDLY_FASTER = 0.8
#: Numbers of samples that differ by no more than this share are those of one data set.
_SAME = 0.05


@dataclass(frozen=True)
class WeakScaling(Result):
    """The best settings at a constant local batch, and at a constant global batch.

    Runs that keep the local batch have another global batch at each GPU count. Where only the
    smallest batch has a known quality, the smallest count has no competitor: it wins whatever the
    times are. It also wins where a step, or an epoch, has more samples on more workers: then
    ``is_same_work`` is false. The answer at a constant local batch is per sample, and the other one
    as if the work was the same.
    """

    local_batch: int | None  # None where batches are unknown
    at_local_batch: Option | None  # if the quality at its global batch is acceptable
    global_batch: int | None
    at_global_batch: Option | None  # it may be a predicted one
    is_same_work: bool

    @property
    def is_decided(self) -> bool:
        """Return whether both answers are the same, or the work is."""
        return self.is_same_work or self.at_local_batch == self.at_global_batch


def weak_scaling(
    ran: Sequence[Option], predicted: Sequence[Option], cost: Callable[[Option], float],
    meets: Callable[[Option], bool],
) -> WeakScaling | None:  # fmt: skip
    """Return both answers; None unless each global batch ran on one GPU count, and there are more.

    ``cost`` is what is minimized, and ``meets`` says whether an option meets the constraints.
    """
    own = _at_one_local_batch(ran)
    if not own:
        return None
    per_sample = [_per_sample(item, own) for item in own]
    costs = {id(item): cost(of_sample) for item, of_sample in zip(own, per_sample, strict=True)}
    at_local = min(
        (item for item in own if not item.falls and meets(item)),
        key=lambda item: costs[id(item)], default=None,
    )  # fmt: skip
    global_batch = min(item.global_batch or 0 for item in own) or None
    same = [item for item in (*ran, *predicted) if item.global_batch == global_batch]
    at_global = min(filter(meets, same), key=cost, default=None)
    local_batch = own[0].setting["local_batch"]
    return WeakScaling(local_batch, at_local, global_batch, at_global, _has_same_work(own))


def _at_one_local_batch(ran: Sequence[Option]) -> list[Option]:
    """Return the options of the local batch with the most GPU counts; none without weak scaling."""
    counts: dict[int | None, set[int]] = {}
    by_local: dict[int | None, list[Option]] = {}
    for item in ran:
        counts.setdefault(item.global_batch, set()).add(item.gpus)
        by_local.setdefault(item.setting["local_batch"], []).append(item)
    is_unknown = {item.unit for item in ran} == {"step"}  # steps of an unknown batch
    if not is_unknown and (None in counts or any(len(gpus) > 1 for gpus in counts.values())):
        return []
    own = max(by_local.values(), key=lambda of: len({item.gpus for item in of}), default=[])
    return own if len({item.gpus for item in own}) > 1 else []


def _samples(option: Option) -> float | None:
    per_sample_s = option.per.get("time_per_sample_s")
    return option.time_s.mean / per_sample_s if per_sample_s else None


def _has_same_work(own: Sequence[Option]) -> bool:
    """Return whether a unit is known to have the same samples on all GPU counts."""
    samples = [_samples(item) for item in own]
    known = [count for count in samples if count is not None]
    if own[0].unit == "sample":
        return True
    if len(known) == len(own):
        return max(known) <= (1 + _SAME) * min(known)
    fewest, most = (choose(own, key=lambda item: item.gpus) for choose in (min, max))
    is_faster = most.time_s.mean < _HARDLY_FASTER * fewest.time_s.mean
    return own[0].unit != "step" and is_faster


def _per_sample(option: Option, own: Sequence[Option]) -> Option:
    """Return an option with its time and energy for the same number of samples as the others."""
    if _has_same_work(own):
        return option
    samples = _samples(option) or float(option.gpus)  # at a constant local batch
    share, energy = 1 / samples, option.energy_j
    return replace(
        option, time_s=Quantity(option.time_s.mean * share),
        energy_j=None if energy is None else Quantity(energy.mean * share),
    )  # fmt: skip
