"""The checkpoint file of a run, which is replaced atomically."""

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn

from wattlaw.errors import BadInput
from wattlaw.files import replacing
from wattlaw.text import collapse_whitespace
from wattlaw.training.failures import disk_full_error

#: Errors that torch raises for a damaged file, or for one of another model.
_DAMAGE = (OSError, RuntimeError, KeyError, ValueError, EOFError, TypeError, AttributeError)
#: A rank's random state: its generator on the CPU, and that of its GPU if it has one.
RandomState = dict[str, torch.Tensor]


class Stateful(Protocol):
    """An object whose state can be saved and loaded."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""

    def load_state_dict(self, state: dict[str, Any]) -> Any:
        """Restore a state."""


@dataclass(frozen=True)
class Progress:
    """The progress of a run: the number of finished epochs, and of steps in the next one.

    With all steps of an epoch its training is finished, but its evaluation is not.
    """

    epoch: int = 0
    step: int = 0
    loss_sum: float = 0.0  # over the samples of those steps, of all ranks
    samples: int = 0

    @property
    def is_begin(self) -> bool:
        """Say whether the run has not begun."""
        return not (self.epoch or self.step)

    @property
    def loss(self) -> float | None:
        """Return the mean loss of the epoch's samples so far."""
        return self.loss_sum / self.samples if self.samples else None


class Loaded(NamedTuple):
    """The progress of a checkpoint and the random states of its ranks; none at an epoch's begin."""

    progress: Progress
    random: list[RandomState]


def save(
    path: Path, parts: dict[str, Stateful], progress: Progress, random: list[RandomState]
) -> None:
    """Replace a checkpoint; the old one stays until the new one is complete.

    Parameters
    ----------
    path
        The checkpoint file.
    parts
        The objects whose state is saved, by name.
    progress
        The progress of the run.
    random
        The random state of each rank; empty at the begin of an epoch, which sets new seeds.
    """
    state: dict[str, Any] = {name: part.state_dict() for name, part in parts.items()}
    state |= {"progress": dict(vars(progress)), "random": random}
    _write(path, state)


def load(path: Path, parts: dict[str, Stateful], *, epochs: int, steps: int, world: int) -> Loaded:
    """Load the state of the parts from a checkpoint, if the file exists.

    Parameters
    ----------
    path, parts
        As they were saved.
    epochs, steps, world
        The number of epochs, of steps in an epoch, and of ranks.

    Raises
    ------
    BadInput
        The file is not a checkpoint of this run.
    """
    if not path.exists():
        return Loaded(Progress(), [])
    try:
        # Each part moves its state to its device. Adam's step counts stay on the CPU: on a GPU
        # every step would wait for each of them.
        state = torch.load(path, map_location="cpu", weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(state[name])
        progress = Progress(**state["progress"])
        if not (0 <= progress.epoch <= epochs and 0 <= progress.step <= steps):
            raise ValueError(f"it was saved at step {progress.step} of epoch {progress.epoch}")
        random = list(state["random"])
        if len(random) != (world if progress.step else 0):
            raise ValueError(f"it has the random state of {len(random)} ranks")
        return Loaded(progress, random)
    except (*_DAMAGE, pickle.UnpicklingError) as error:
        raise BadInput(
            f"{path}: not a checkpoint of this run: {collapse_whitespace(str(error))[:200]}; "
            "remove it to start from the beginning"
        ) from None


def random_state(device: torch.device) -> RandomState:
    """Return the states of a rank's random generators."""
    state = {"cpu": torch.get_rng_state()}
    return state | ({"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def set_random_state(state: RandomState, device: torch.device) -> None:
    """Restore the states of a rank's random generators."""
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


def save_model(path: Path, model: nn.Module) -> None:
    """Write a trained model's weights."""
    _write(path, {"model": model.state_dict()})


def _write(path: Path, state: dict[str, Any]) -> None:
    """Replace a file. It is opened here, because torch hides the system's error messages.

    Raises
    ------
    OSError
        The file cannot be written; the error of a full disk names the file.
    """
    try:
        with replacing(path) as temporary, temporary.open("wb") as file:
            torch.save(state, file)
    except (OSError, RuntimeError) as error:
        full = disk_full_error(error)
        if full is None:
            raise
        raise OSError(full.errno, full.strerror, str(path)) from error
