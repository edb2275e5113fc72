"""What twice as many GPUs cost and give."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wattlaw.analysis.advice.option import Option
from wattlaw.analysis.result import Result

_LEFT = ("gpus", "nodes")


@dataclass(frozen=True)
class Doubling(Result):
    """The option with twice the GPUs of another, and what it changes over all epochs."""

    of: Option
    option: Option
    rule: str  # the batch that is kept: global_batch or local_batch

    @property
    def time_ratio(self) -> float:
        """Return the time as a share of that with half the GPUs."""
        return self.option.train_time_s.mean / self.of.train_time_s.mean

    @property
    def energy_ratio(self) -> float | None:
        """Return the energy likewise; None where either is not known."""
        larger, smaller = self.option.train_energy_j, self.of.train_energy_j
        return None if larger is None or smaller is None else larger.mean / smaller.mean

    def to_dict(self) -> dict[str, Any]:
        """Return the option's values, with the ratios and differences of the means."""
        values, base = self.option.to_dict(), self.of.to_dict()
        changes = {
            f"extra_{name}": None if values[name] is None or base[name] is None
            else values[name] - base[name]
            for name in ("train_energy_j", "gpu_hours", "cost", "co2_kg")
        }  # fmt: skip
        return values | {
            "keeps": self.rule, "from_gpus": self.of.gpus, "time_ratio": self.time_ratio,
            "energy_ratio": self.energy_ratio,
            "saves_s": base["train_time_s"] - values["train_time_s"], **changes,
        }  # fmt: skip


def next_doubling(option: Option, options: Sequence[Option]) -> Doubling | None:
    """Return the option with twice the GPUs and all else the same; None where there is none.

    The global batch stays rather than the local one, since then the same is learned; but what was
    measured comes before what a law says.
    """
    doublings = []
    for rule, other in (("global_batch", "local_batch"), ("local_batch", "global_batch")):
        doublings += [
            Doubling(option, candidate, rule)
            for candidate in options
            if candidate.gpus == 2 * option.gpus
            and option.setting[rule] is not None
            and candidate.matches(option, other, *_LEFT)
        ]
    # Without batches that are known, all else is the same.
    doublings += [
        Doubling(option, candidate, "unknown_batch")
        for candidate in options
        if candidate.gpus == 2 * option.gpus
        and option.setting["global_batch"] is None
        and candidate.matches(option, *_LEFT)
    ]
    return min(doublings, key=_order, default=None)


def _order(doubling: Doubling) -> tuple[bool, bool, int]:
    """Return what comes first: measured, the same global batch, the fewest nodes."""
    option = doubling.option
    return not option.measured, doubling.rule != "global_batch", int(option.setting["nodes"] or 0)
