"""The base of workloads: a constant learning rate, unless they have another schedule."""
# ruff: noqa: ARG002 - the arguments of the protocol

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch

from wattlaw.workloads.workload import Dataset, Schedule


class Constant:
    def before_step(self, epochs_done: float) -> None: ...

    def after_epoch(self, loss: float | None) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class BaseWorkload(ABC):
    def schedule(
        self, optimizer: torch.optim.Optimizer, global_batch: int, epochs: int
    ) -> Schedule:
        return Constant()

    def training_data(self) -> Dataset:
        return self._data(training=True)

    def evaluation_data(self) -> Dataset:
        return self._data(training=False)

    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        return {name: total / sums["samples"] for name, total in sums.items() if name != "samples"}

    @abstractmethod
    def _data(self, *, training: bool) -> Dataset: ...
