"""Learning-rate schedules as functions of the epochs done, with fractions."""

import math
from typing import Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from wattlaw.workloads.workload import Schedule


class Constant:
    """The optimizer's initial rates."""

    def before_step(self, epochs_done: float) -> None:
        """Do nothing."""

    def after_epoch(self, loss: float | None) -> None:
        """Do nothing."""

    def state_dict(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing."""


class ConstantRate:
    """The method ``schedule`` of a workload with a constant learning rate."""

    def schedule(
        self,
        optimizer: torch.optim.Optimizer,  # noqa: ARG002
        global_batch: int,  # noqa: ARG002
        epochs: int,  # noqa: ARG002
    ) -> Schedule:
        """Return a constant learning rate."""
        return Constant()


class Cosine(Constant):
    """From the optimizer's rates to zero along half a cosine: lr (1 + cos(pi e / E)) / 2.

    Loshchilov and Hutter 2017 (arXiv 1608.03983), equation 5, without restarts.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, epochs: int) -> None:
        self._optimizer, self._epochs = optimizer, epochs
        self._peaks = [group["lr"] for group in optimizer.param_groups]

    def before_step(self, epochs_done: float) -> None:
        """Set the rates."""
        share = (1 + math.cos(math.pi * min(1.0, epochs_done / self._epochs))) / 2
        for group, peak in zip(self._optimizer.param_groups, self._peaks, strict=True):
            group["lr"] = peak * share


class WarmupThenPlateau:
    """A linear rise from zero over the first epochs, then a tenth whenever the loss stops falling.

    The rise is that of Goyal et al. 2017 (arXiv 1706.02677), section 2.2, except that theirs begins
    above zero.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, *, warmup_epochs: int, patience: int
    ) -> None:
        self._optimizer, self._warmup_epochs = optimizer, warmup_epochs
        self._peaks = [group["lr"] for group in optimizer.param_groups]
        self._plateau = ReduceLROnPlateau(optimizer, factor=0.1, patience=patience)
        self._epochs = 0

    def before_step(self, epochs_done: float) -> None:
        """Set the rates during warm-up."""
        if epochs_done < self._warmup_epochs:
            share = epochs_done / self._warmup_epochs
            for group, peak in zip(self._optimizer.param_groups, self._peaks, strict=True):
                group["lr"] = peak * share
        elif self._epochs == self._warmup_epochs:
            for group, peak in zip(self._optimizer.param_groups, self._peaks, strict=True):
                group["lr"] = peak

    def after_epoch(self, loss: float | None) -> None:
        """Lower the rates when the loss has not fallen for ``patience`` epochs."""
        self._epochs += 1
        if loss is not None and self._epochs > self._warmup_epochs:
            self._plateau.step(loss)

    def state_dict(self) -> dict[str, Any]:
        """Return the epochs done and the state of the plateau."""
        return {"epochs": self._epochs, "plateau": self._plateau.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        self._epochs = state["epochs"]
        self._plateau.load_state_dict(state["plateau"])
