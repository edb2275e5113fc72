"""What a run needs to go on where it was: in one file, replaced whole."""

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn

from wattlaw.errors import BadInput
from wattlaw.files import replacing
from wattlaw.training.failures import no_room

#: What torch raises of a file that is damaged, or of another model.
_DAMAGE = (OSError, RuntimeError, KeyError, ValueError, EOFError, TypeError, AttributeError)
#: A rank's random state: its generator on the CPU, and that of its GPU if it has one.
RandomState = dict[str, torch.Tensor]


class Stateful(Protocol):
    """What can tell its state and take it back."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""

    def load_state_dict(self, state: dict[str, Any]) -> Any:
        """Take a state."""


@dataclass(frozen=True)
class Progress:
    """How far a run has come: so many epochs, and so many steps of the next one.

    With all steps of an epoch its training is done, and its evaluation is not.
    """

    epoch: int = 0
    step: int = 0
    loss_sum: float = 0.0  # over the samples of those steps, of all ranks
    samples: int = 0

    @property
    def is_begin(self) -> bool:
        """Say whether nothing is done yet."""
        return not (self.epoch or self.step)

    @property
    def loss(self) -> float | None:
        """Return the mean loss of the epoch's samples so far."""
        return self.loss_sum / self.samples if self.samples else None


class Loaded(NamedTuple):
    """Where a run goes on, and the random state of every rank there; none at an epoch's begin."""

    progress: Progress
    random: list[RandomState]


def save(
    path: Path, parts: dict[str, Stateful], progress: Progress, random: list[RandomState]
) -> None:
    """Replace a checkpoint; the one before stays until this one is whole.

    Parameters
    ----------
    path
        Where it is.
    parts
        What has a state.
    progress
        How far the run has come.
    random
        Every rank's state, in order of rank; empty at an epoch's begin, which seeds anew.
    """
    state: dict[str, Any] = {name: part.state_dict() for name, part in parts.items()}
    state |= {"progress": dict(vars(progress)), "random": random}
    _write(path, state)


def load(path: Path, parts: dict[str, Stateful], *, epochs: int, steps: int, world: int) -> Loaded:
    """Bring parts to the state of a checkpoint; return where it was, the begin without one.

    Parameters
    ----------
    path, parts
        As they were saved.
    epochs, steps, world
        How many epochs the run has, how many steps each of them, and how many ranks make them.

    Raises
    ------
    BadInput
        The file is there and is no checkpoint of this run.
    """
    if not path.exists():
        return Loaded(Progress(), [])
    try:
        # Each part takes its state to where it is. Adam's step counts belong on the CPU, for on a
        # GPU every one of them would be waited for at every step.
        state = torch.load(path, map_location="cpu", weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(state[name])
        progress = Progress(**state["progress"])
        if not (0 <= progress.epoch <= epochs and 0 <= progress.step <= steps):
            raise ValueError(f"it is of step {progress.step} of epoch {progress.epoch}")
        random = list(state["random"])
        if len(random) != (world if progress.step else 0):
            raise ValueError(f"it has the random state of {len(random)} ranks")
        return Loaded(progress, random)
    except (*_DAMAGE, pickle.UnpicklingError) as error:
        words = " ".join(str(error).split())[:200]
        raise BadInput(
            f"{path}: not a checkpoint of this run: {words}; remove it to start from the beginning"
        ) from None


def random_state(device: torch.device) -> RandomState:
    """Return the states of the generators from which a rank draws, on the CPU."""
    state = {"cpu": torch.get_rng_state()}
    return state | ({"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def set_random_state(state: RandomState, device: torch.device) -> None:
    """Let a rank draw what it would have drawn after a state was told."""
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


def save_model(path: Path, model: nn.Module) -> None:
    """Write a trained model's weights."""
    _write(path, {"model": model.state_dict()})


def _write(path: Path, state: dict[str, Any]) -> None:
    """Replace a file, through one of ours: torch has other words for the system's reasons.

    Raises
    ------
    OSError
        It names the file where the disk is full.
    """
    try:
        with replacing(path) as temporary, temporary.open("wb") as file:
            torch.save(state, file)
    except (OSError, RuntimeError) as error:
        full = no_room(error)
        if full is None:
            raise
        raise OSError(full.errno, full.strerror, str(path)) from error
