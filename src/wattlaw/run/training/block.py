"""A window of training steps, and the times of its steps and of their parts."""

import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from wattlaw.run.instrumentation.step_times import Floats, step_time_columns
from wattlaw.run.training.ranks import Ranks
from wattlaw.run.training.step_clock import Moment, StepClock


@dataclass
class TrainedStep:
    """A step of this rank: the sum of the loss over its samples, and the moments of its parts."""

    loss_sum: torch.Tensor | float = 0.0
    samples: int = 0
    data_waits: list[tuple[Moment, Moment]] = field(default_factory=list)
    communication: list[tuple[Moment, Moment]] = field(default_factory=list)


class Block:
    """A window of training steps between barriers of the ranks; ``end`` completes it."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=ranks.device)
        self._samples = self.steps = 0
        self._data_waits: list[tuple[Moment, Moment]] = []
        self._communication: list[tuple[Moment, Moment]] = []
        self.duration_s = 0.0
        self.epoch_begins: list[int] = []  # steps that are the first of an epoch
        ranks.barrier()
        self._start_ns, self._start_s = time.time_ns(), time.perf_counter()
        self._clock = StepClock(ranks.gpu)

    @property
    def elapsed_s(self) -> float:
        """Return the time since the begin, by the host's clock."""
        return time.perf_counter() - self._start_s

    def begins_epoch(self) -> None:
        """Mark the next step as the first of an epoch."""
        self.epoch_begins.append(self.steps)

    def add(self, step: TrainedStep) -> None:
        """Add a step that has just been made."""
        self._loss_sum += step.loss_sum
        self._samples += step.samples
        self._data_waits += step.data_waits
        self._communication += step.communication
        self.steps += 1
        self._clock.mark()

    def end(self) -> tuple[dict[str, Any], dict[str, float]]:
        """End the window; return it, and the sums of loss and samples over all ranks."""
        ranks = self._ranks
        ranks.barrier()
        self.duration_s = self.elapsed_s
        of_rank = {
            "loss": float(self._loss_sum),
            "samples": self._samples,
            "data_wait_s": float(self._clock.between_s(self._data_waits).sum()),
        }
        gathered = ranks.all_gather(of_rank)
        totals = sum_by_name(gathered)
        window: dict[str, Any] = {
            "start_ns": self._start_ns,
            "duration_s": self.duration_s,
            "steps": self.steps,
            "samples": samples_of_host(ranks, gathered),
            "loss": totals["loss"] / totals["samples"] if totals["samples"] else None,
            "data_wait_s": totals["data_wait_s"] / ranks.world,
        }
        if ranks.world > 1:
            # The last rank of a step does not wait for others: it only communicates.
            each_s = self._clock.between_s(self._communication)
            least_s, mean_s = (float(values.sum()) for values in ranks.least_and_mean(each_s))
            window |= {"communication_s": least_s, "rank_wait_s": mean_s - least_s}
        return window | step_time_columns(self.steps_s()), totals

    def steps_s(self) -> Floats:
        """Return the time of each step; only after the end."""
        return self._clock.steps_s()


def sum_by_name(gathered: Iterable[dict[str, float]]) -> dict[str, float]:
    """Return the sums over ranks; a rank without samples has only their number."""
    totals: dict[str, float] = defaultdict(float)
    for values in gathered:
        for name, value in values.items():
            totals[name] += value
    return dict(totals)


def samples_of_host(ranks: Ranks, gathered: list[dict[str, float]]) -> int:
    """Return the samples of all ranks of this host."""
    return int(sum(values["samples"] for values in ranks.of_host(gathered)))
