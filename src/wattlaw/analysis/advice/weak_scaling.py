"""Both answers where the global batch grows with the workers: weak scaling and strong scaling."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from wattlaw.analysis.advice.option import Option
from wattlaw.analysis.result import Result


@dataclass(frozen=True)
class WeakScaling(Result):
    """The best settings at a constant local batch, and at a constant global batch.

    Runs that keep the local batch have another global batch at each GPU count. Where only the
    smallest batch has a known quality, the smallest count has no competitor: it wins whatever the
    times are. Where batches are unknown, either may be constant; a step of more workers then takes
    longer, or has more samples.
    """

    local_batch: int | None
    at_local_batch: Option | None  # if the quality at its global batch is acceptable
    global_batch: int | None
    at_global_batch: Option | None  # it may be a predicted one


def weak_scaling(
    ran: Sequence[Option], predicted: Sequence[Option], cost: Callable[[Option], float],
    meets: Callable[[Option], bool],
) -> WeakScaling | None:  # fmt: skip
    """Return both answers; None unless each global batch ran on one GPU count, and there are more.

    ``cost`` is what is minimized, and ``meets`` says whether an option meets the constraints.
    """
    if {item.unit for item in ran} == {"step"} and len({item.gpus for item in ran}) > 1:
        of_sample = {id(item): cost(_per_worker(item)) for item in ran}
        return WeakScaling(
            None, min(filter(meets, ran), key=lambda item: of_sample[id(item)], default=None),
            None, min(filter(meets, ran), key=cost, default=None),
        )  # fmt: skip
    counts: dict[int | None, set[int]] = {}
    by_local: dict[int | None, list[Option]] = {}
    for item in ran:
        counts.setdefault(item.global_batch, set()).add(item.gpus)
        by_local.setdefault(item.setting["local_batch"], []).append(item)
    if (
        not ran
        or None in counts
        or None in by_local
        or any(len(gpus) > 1 for gpus in counts.values())
    ):
        return None
    local_batch, own = max(by_local.items(), key=lambda pair: len({item.gpus for item in pair[1]}))
    if len({item.gpus for item in own}) < 2 or local_batch is None:
        return None
    global_batch = min(item.global_batch or 0 for item in own)

    def best(options: Sequence[Option]) -> Option | None:
        return min(filter(meets, options), key=cost, default=None)

    return WeakScaling(
        local_batch, best([item for item in own if not item.falls]),
        global_batch,
        best([item for item in (*ran, *predicted) if item.global_batch == global_batch]),
    )  # fmt: skip


def _per_worker(option: Option) -> Option:
    """Return an option with the time and energy of a step divided by its workers."""
    energy, share = option.energy_j, 1 / option.gpus
    return replace(
        option, time_s=option.time_s.times(share), energy_j=energy and energy.times(share)
    )
