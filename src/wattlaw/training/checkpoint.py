"""What a run needs to go on where it was: in one file, replaced after an epoch."""

import pickle
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from wattlaw.errors import BadInput
from wattlaw.store.files import replacing

#: What torch raises of a file that is damaged, or of another model.
_DAMAGE = (OSError, RuntimeError, KeyError, ValueError, EOFError, TypeError, AttributeError)


class Stateful(Protocol):
    """What can tell its state and take it back."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""

    def load_state_dict(self, state: dict[str, Any]) -> Any:
        """Take a state."""


def save(path: Path, parts: dict[str, Stateful], epochs_done: int) -> None:
    """Replace a checkpoint; the one before stays until this one is whole."""
    state = {name: part.state_dict() for name, part in parts.items()}
    with replacing(path) as temporary:
        torch.save({"epochs_done": epochs_done, **state}, temporary)


def load(path: Path, parts: dict[str, Stateful]) -> int:
    """Bring parts to the state of a checkpoint; return how many epochs were done, 0 without one.

    Raises
    ------
    BadInput
        The file is there and is no checkpoint of this run.
    """
    if not path.exists():
        return 0
    try:
        # Each part takes its state to where it is. Adam's step counts belong on the CPU, for on a
        # GPU every one of them would be waited for at every update.
        state = torch.load(path, map_location="cpu", weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(state[name])
        return int(state["epochs_done"])
    except (*_DAMAGE, pickle.UnpicklingError) as error:
        words = " ".join(str(error).split())[:200]
        raise BadInput(
            f"{path}: not a checkpoint of this run: {words}; remove it to start from the beginning"
        ) from None


def save_model(path: Path, model: nn.Module) -> None:
    """Write a trained model's weights."""
    with replacing(path) as temporary:
        torch.save({"model": model.state_dict()}, temporary)
