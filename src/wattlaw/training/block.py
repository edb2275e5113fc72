"""A window of training steps, and the times of its steps."""

import time
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch

from wattlaw.instrumentation.step_times import Floats, step_time_columns
from wattlaw.training.ranks import Ranks
from wattlaw.training.step_clock import StepClock


class Block:
    """A window of training steps between barriers of the ranks; ``end`` completes it."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=ranks.device)
        self._samples = self.steps = 0
        self.duration_s = 0.0
        self.epoch_begins: list[int] = []  # steps that are the first of an epoch
        ranks.barrier()
        self._start_ns, self._start_s = time.time_ns(), time.perf_counter()
        self._clock = StepClock(on_cuda=ranks.device.type == "cuda")

    @property
    def elapsed_s(self) -> float:
        """Return the time since the begin, by the host's clock."""
        return time.perf_counter() - self._start_s

    def begins_epoch(self) -> None:
        """Mark the next step as the first of an epoch."""
        self.epoch_begins.append(self.steps)

    def add(self, loss_sum: torch.Tensor, samples: int) -> None:
        """Add a step that has just been made."""
        self._loss_sum += loss_sum
        self._samples += samples
        self.steps += 1
        self._clock.mark()

    def end(self) -> tuple[dict[str, Any], dict[str, float]]:
        """End the window; return it, and the sums of loss and samples over all ranks."""
        ranks = self._ranks
        ranks.barrier()
        self.duration_s = self.elapsed_s
        gathered = ranks.all_gather({"loss": float(self._loss_sum), "samples": self._samples})
        totals = sum_by_name(gathered)
        window: dict[str, Any] = {
            "start_ns": self._start_ns,
            "duration_s": self.duration_s,
            "steps": self.steps,
            "samples": samples_of_host(ranks, gathered),
            "loss": totals["loss"] / totals["samples"] if totals["samples"] else None,
        }
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
