"""The checkpoint of a run: all ranks save it together, and rank 0 writes the file."""

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
_LATE_S, _RETRY_S = 60.0, 0.5
_PREEMPTED = "preemption notice (SIGUSR1)"


class Checkpointer:
    """Saves and loads the checkpoint of a run. All ranks call each method together.

    Parameters
    ----------
    path
        The checkpoint file.
    parts
        The objects whose state is saved, by name.
    ranks
        The ranks of the run.
    windows
        The windows of this rank's host, if it writes them. They are synced to disk before a
        checkpoint.
    live
        The attempt's live folder for ``checkpointed.json`` and ``stopped.json``, if they are
        written.
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
        self._loaded: Progress | None = None

    def load(self, *, epochs: int, steps: int) -> Progress:
        """Load the checkpoint and return its progress.

        Raises
        ------
        BadInput
            The checkpoint does not belong to this run.
        """
        ranks, end_s = self._ranks, time.monotonic() + _LATE_S
        while True:
            progress, random = checkpoint.load(
                self._path, self._parts, epochs=epochs, steps=steps, world=ranks.world
            )
            gathered = ranks.all_gather((progress, time.monotonic() > end_s))
            self._loaded = progress
            first, is_late = gathered[0]
            if all(other == first for other, _ in gathered):
                self._random = random[ranks.rank] if random else {}
                return progress
            if is_late:
                raise BadInput(f"{self._path}: differs between hosts after {_LATE_S:g} s")
            time.sleep(_RETRY_S)

    def set_random_state(self) -> None:
        """Restore the random state of this rank from the loaded checkpoint."""
        checkpoint.set_random_state(self._random, self._ranks.device)

    def save(self, progress: Progress) -> None:
        """Replace the checkpoint."""
        ranks, random = self._ranks, list[RandomState]()
        if progress.step:
            random = ranks.all_gather(checkpoint.random_state(ranks.device))
        if self._windows is not None:
            self._windows.sync()
        ranks.barrier()  # until every host has synced its windows
        if ranks.rank == 0:
            checkpoint.save(self._path, self._parts, progress, random)
            if progress != self._loaded:
                self._write_status("checkpointed", progress)

    def stop(self, progress: Progress) -> None:
        """Replace the checkpoint, and record that the run stops there after a notice."""
        self.save(progress)
        if self._ranks.rank == 0:
            self._write_status("stopped", progress, reason=_PREEMPTED)

    def _write_status(self, name: str, progress: Progress, **fields: str) -> None:
        if self._live is not None:
            status = {"epoch": progress.epoch, "step": progress.step, **fields}
            write_text(self._live / f"{name}.json", json.dumps(status))
