"""The checkpoint file of a run, which rank 0 replaces atomically and all ranks load."""

import json
import pickle
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from wattlaw.common.errors import BadInput
from wattlaw.common.files import replacing, write_text
from wattlaw.common.text import collapse_whitespace
from wattlaw.running.training.failures import disk_full_error
from wattlaw.running.training.ranks import Ranks
from wattlaw.store.live import LiveWriter

#: Errors that torch raises for a damaged file, or for one of another model.
_DAMAGE = (
    *(OSError, RuntimeError, KeyError, ValueError, EOFError, TypeError, AttributeError),
    pickle.UnpicklingError,
)
#: How long a shared file system may take to show on all hosts what one has written.
_LATE_S, _RETRY_S = 60.0, 0.5
_PREEMPTED = "preemption notice (SIGUSR1)"


@dataclass(frozen=True)
class Progress:
    """Finished epochs, and steps in the next one: with all of them, its evaluation is left."""

    epoch: int = 0
    step: int = 0
    loss_sum: float = 0.0  # over the samples of those steps, of all ranks
    samples: int = 0

    @property
    def loss(self) -> float | None:
        return self.loss_sum / self.samples if self.samples else None


def save_model(path: Path, model: nn.Module) -> None:
    _write(path, {"model": model.state_dict()})


def _write(path: Path, state: dict[str, Any]) -> None:
    """The file is opened here, because torch hides the system's error messages."""
    try:
        with replacing(path) as temporary, temporary.open("wb") as file:
            torch.save(state, file)
    except (OSError, RuntimeError) as error:
        full = disk_full_error(error)
        if full is None:
            raise
        raise OSError(full.errno, full.strerror, str(path)) from error


class Checkpointer:
    """Saves and loads the checkpoint of a run. All ranks call each method together.

    ``windows`` of this rank's host, if it writes them, are synced to disk before a checkpoint.
    """

    def __init__(
        self,
        path: Path,
        parts: dict[str, Any],
        ranks: Ranks,
        windows: LiveWriter | None,
        live: Path | None,
    ) -> None:
        self._path, self._parts, self._ranks = path, parts, ranks
        self._windows, self._live = windows, live
        #: A rank's random state: its generator on the CPU, and that of its GPU if it has one.
        self._random: dict[str, torch.Tensor] = {}
        self._loaded: Progress | None = None

    def load(self, *, epochs: int, steps: int) -> Progress:
        """Return the progress; ``BadInput`` if the file is not a checkpoint of such a run."""
        end_s = time.monotonic() + _LATE_S
        while True:
            self._loaded = progress = self._load(epochs, steps)
            gathered = self._ranks.all_gather((progress, time.monotonic() > end_s))
            first, is_late = gathered[0]
            if all(other == first for other, _ in gathered):
                return progress
            if is_late:
                raise BadInput(f"{self._path}: differs between hosts after {_LATE_S:g} s")
            time.sleep(_RETRY_S)

    def _load(self, epochs: int, steps: int) -> Progress:
        path, ranks = self._path, self._ranks
        if not path.exists():
            return Progress()
        try:
            # Each part moves its state to its device. Adam's step counts stay on the CPU: on a GPU
            # every step would wait for each of them.
            state = torch.load(path, map_location="cpu", weights_only=True)
            for name, part in self._parts.items():
                part.load_state_dict(state[name])
            progress = Progress(**state["progress"])
            if not (0 <= progress.epoch <= epochs and 0 <= progress.step <= steps):
                raise ValueError(f"it was saved at step {progress.step} of epoch {progress.epoch}")
            random = list(state["random"])
            if len(random) != (ranks.world if progress.step else 0):
                raise ValueError(f"it has the random state of {len(random)} ranks")
        except _DAMAGE as error:
            raise BadInput(
                f"{path}: not a checkpoint of this run: {collapse_whitespace(str(error))[:200]}; "
                "remove it to start from the beginning"
            ) from None
        self._random = random[ranks.rank] if random else {}
        return progress

    def set_random_state(self) -> None:
        torch.set_rng_state(self._random["cpu"])
        device, gpu = self._ranks.device, self._ranks.gpu
        if gpu is not None and device.type in self._random:
            gpu.set_rng_state(self._random[device.type], device)

    def save(self, progress: Progress) -> None:
        """Without random states at the begin of an epoch, which sets seeds."""
        ranks, random = self._ranks, list[dict[str, torch.Tensor]]()
        if progress.step:
            own = {"cpu": torch.get_rng_state()}
            if ranks.gpu is not None:
                own[ranks.device.type] = ranks.gpu.get_rng_state(ranks.device)
            random = ranks.all_gather(own)
        if self._windows is not None:
            self._windows.sync()
        ranks.barrier()  # until every host has synced its windows
        if ranks.rank == 0:
            state: dict[str, Any] = {name: part.state_dict() for name, part in self._parts.items()}
            _write(self._path, state | {"progress": dict(vars(progress)), "random": random})
            if progress != self._loaded:
                self._write_status("checkpointed", progress)

    def stop(self, progress: Progress, *, saves: bool) -> None:
        if saves:
            self.save(progress)
        if self._ranks.rank == 0:
            self._write_status("stopped", progress, reason=_PREEMPTED)

    def _write_status(self, name: str, progress: Progress, **fields: str) -> None:
        if self._live is not None:
            status = {"epoch": progress.epoch, "step": progress.step, **fields}
            write_text(self._live / f"{name}.json", json.dumps(status))
