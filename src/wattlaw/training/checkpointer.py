"""Keeps a run's checkpoint: all ranks together, the first one writes, and tells how far it is."""

import json
import time
from pathlib import Path

from wattlaw.errors import BadInput
from wattlaw.files import write_text
from wattlaw.store.live import LiveWriter
from wattlaw.training import checkpoint
from wattlaw.training.checkpoint import Progress, RandomState, Stateful
from wattlaw.training.ranks import Ranks

#: How long a shared file system may take to show on all hosts what one has written.
_LATE_S, _AGAIN_S = 60.0, 0.5
_WARNED = "warned of its end (SIGUSR1)"


class Checkpointer:
    """One rank's part in the checkpoints of a run. All ranks call each method together.

    Parameters
    ----------
    path
        Of the checkpoint.
    parts
        What has a state.
    ranks
        This process's place among the others.
    windows
        Where this rank writes windows, if it does: they are on disk before a checkpoint is that
        comes after them.
    live
        The attempt's live folder, if it is to be told there how far checkpoints are.
    """

    def __init__(
        self,
        path: Path,
        parts: dict[str, Stateful],
        ranks: Ranks,
        windows: LiveWriter | None,
        live: Path | None,
    ) -> None:
        self._path, self._parts, self._ranks = path, parts, ranks
        self._windows, self._live = windows, live
        self._random: RandomState = {}
        self._begun_at: Progress | None = None

    def load(self, *, epochs: int, steps: int) -> Progress:
        """Return where the run goes on, after everything was brought there.

        Raises
        ------
        BadInput
            There is a checkpoint, and it is not of this run.
        """
        ranks, end_s = self._ranks, time.monotonic() + _LATE_S
        while True:
            progress, random = checkpoint.load(
                self._path, self._parts, epochs=epochs, steps=steps, world=ranks.world
            )
            found = ranks.all_gather((progress, time.monotonic() > end_s))
            self._begun_at = progress
            if all(one == found[0][0] for one, _ in found):
                self._random = random[ranks.rank] if random else {}
                return progress
            if found[0][1]:
                raise BadInput(f"{self._path}: not the same on all hosts after {_LATE_S:g} s")
            time.sleep(_AGAIN_S)

    def set_random_state(self) -> None:
        """Let this rank draw what it would have drawn after the checkpoint that was loaded."""
        checkpoint.set_random_state(self._random, self._ranks.device)

    def save(self, progress: Progress) -> None:
        """Replace the checkpoint."""
        ranks, random = self._ranks, list[RandomState]()
        if progress.step:
            random = ranks.all_gather(checkpoint.random_state(ranks.device))
        if self._windows is not None:
            self._windows.sync()
        ranks.barrier()  # every host has its windows on file
        if ranks.rank == 0:
            checkpoint.save(self._path, self._parts, progress, random)
            if progress != self._begun_at:
                self._tell("checkpointed", {"epoch": progress.epoch, "step": progress.step})

    def stop(self, progress: Progress) -> None:
        """Replace the checkpoint, and tell that the run stops there for a warning."""
        self.save(progress)
        if self._ranks.rank == 0:
            where = {"epoch": progress.epoch, "step": progress.step}
            self._tell("stopped", {**where, "reason": _WARNED})

    def _tell(self, name: str, told: dict[str, object]) -> None:
        if self._live is not None:
            write_text(self._live / f"{name}.json", json.dumps(told))
