"""Weights of an earlier run, checked against the model before they are taken."""

import pickle
from pathlib import Path
from typing import Any

import torch
from torch import nn

from wattlaw.errors import BadInput

# What DDP, torch.compile and our own wrapper put before the names of a network's weights.
_PREFIXES = ("module.", "_orig_mod.", "network.")


def load_weights(network: nn.Module, path: Path) -> None:
    """Load a checkpoint into a network; all weights must be there, and no others.

    Parameters
    ----------
    network
        Takes the weights.
    path
        A file of torch.save: a state dict, or a dict that has one as ``model``.

    Raises
    ------
    BadInput
        The file cannot be read, or its weights are not those of this network.
    """
    weights = _without_prefixes(_read(path), path)
    wanted = dict(network.named_parameters())
    for name, parameter in wanted.items():
        if name not in weights:
            raise BadInput(f"{path}: has no weight '{name}', which the model has")
        found, allowed = tuple(weights[name].shape), tuple(parameter.shape)
        if found != allowed:
            raise BadInput(
                f"{path}: weight '{name}' has shape {found}; allowed by the options: {allowed}"
            )
    buffers = dict(network.named_buffers())
    unknown = sorted(weights.keys() - wanted.keys() - buffers.keys())
    if unknown:
        raise BadInput(f"{path}: has a weight '{unknown[0]}', which the model has not")
    # physicsnemo keeps an empty buffer to know its device; files of other versions lack it.
    network.load_state_dict({**buffers, **weights}, strict=True)


def _read(path: Path) -> dict[str, Any]:
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise BadInput(f"{path}: there is no such file") from None
    except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
        words = " ".join(str(error).split())[:200]
        raise BadInput(f"{path}: not a checkpoint of tensors: {words}") from None
    if isinstance(found, dict) and isinstance(found.get("model"), dict):
        found = found["model"]
    if not isinstance(found, dict) or not found:
        raise BadInput(f"{path}: neither a state dict nor a dict that has one as 'model'")
    return found


def _without_prefixes(state: dict[str, Any], path: Path) -> dict[str, torch.Tensor]:
    weights = {}
    for key, value in state.items():
        name = str(key)
        while name.startswith(_PREFIXES):
            name = name.partition(".")[2]
        if not isinstance(value, torch.Tensor):
            raise BadInput(f"{path}: '{key}' is not a tensor; allowed: a state dict of tensors")
        weights[name] = value
    return weights
