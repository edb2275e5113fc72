"""Learning-rate schedules of the two studies."""

import math
from typing import Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from wattlaw.workloads.workload import Constant


class _Scaled(Constant):
    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._peaks = [group["lr"] for group in optimizer.param_groups]

    def _scale(self, factor: float) -> None:
        for group, peak in zip(self._optimizer.param_groups, self._peaks, strict=True):
            group["lr"] = peak * factor


class Cosine(_Scaled):
    """From the optimizer's rates to zero along half a cosine: lr (1 + cos(pi e / E)) / 2.

    Loshchilov and Hutter 2017 (arXiv 1608.03983), equation 5, without restarts.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, epochs: int) -> None:
        super().__init__(optimizer)
        self._epochs = epochs

    def before_step(self, epochs_done: float) -> None:
        self._scale((1 + math.cos(math.pi * min(1.0, epochs_done / self._epochs))) / 2)


class WarmupThenPlateau(_Scaled):
    """A linear rise from zero over the first epochs, then a tenth whenever the loss stops falling.

    The rise is that of Goyal et al. 2017 (arXiv 1706.02677), section 2.2, except that theirs begins
    above zero.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, *, warmup_epochs: int, patience: int
    ) -> None:
        super().__init__(optimizer)
        self._warmup_epochs, self._epochs = warmup_epochs, 0
        self._plateau = ReduceLROnPlateau(optimizer, factor=0.1, patience=patience)

    def before_step(self, epochs_done: float) -> None:
        if epochs_done < self._warmup_epochs:
            self._scale(epochs_done / self._warmup_epochs)
        elif self._epochs == self._warmup_epochs:
            self._scale(1.0)

    def after_epoch(self, loss: float | None) -> None:
        self._epochs += 1
        if loss is not None and self._epochs > self._warmup_epochs:
            self._plateau.step(loss)

    def state_dict(self) -> dict[str, Any]:
        return {"epochs": self._epochs, "plateau": self._plateau.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._epochs = state["epochs"]
        self._plateau.load_state_dict(state["plateau"])
