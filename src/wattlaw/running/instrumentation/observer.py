"""The training steps of one command, while it runs and afterwards: what its caller needs."""

import os
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wattlaw.running.instrumentation.printed_progress import ProgressReader
from wattlaw.running.instrumentation.records import ProcessSteps, StepsFolder
from wattlaw.running.instrumentation.steady_state import (
    TRAINING_FACTS,
    MeasuredPart,
    StepSummary,
    summarise,
)
from wattlaw.study.out_of_memory import memory_that_ran_out

#: The phase of the window that is a process from its start to its end.
RUN = "run"
_REMEDY = (
    "wattlaw starts the command once per GPU; write the command of one rank, without torchrun, "
    "accelerate launch, mpirun, srun or torch.multiprocessing.spawn, or use launch_with"
)
_STDOUT = 1
_NOT_TOGETHER = (
    "several processes trained at the same time, but none has joined a process group: each trains "
    "a model of its own, and more of them are no speedup; wrap the model in "
    "DistributedDataParallel, or start one process on one GPU"
)
_NOT_RECORDED = (
    "no optimizer step was recorded; that takes PyTorch >= 2.0 in a Python that reads PYTHONPATH, "
    "or a progress pattern for the output"
)
_NO_END = (
    "the records stop before the process ended, since it was killed or could not write; later "
    "steps are not counted"
)
#: What the output cannot show.
_OF_PROCESSES = (
    *TRAINING_FACTS, "instrumented", "world_size", "workers_work_together", "steps_by_samples",
)  # fmt: skip


@dataclass
class StepObserver:
    """Sees the steps of a command: those that its processes record in ``folder`` or, with
    ``progress``, those that its output shows.
    """

    folder: Path
    part: MeasuredPart
    progress: ProgressReader | None = None

    def __post_init__(self) -> None:
        self._recorded = StepsFolder(self.folder)

    def take_output(self, piece: bytes) -> None:
        if self.progress is not None:
            self.progress.feed(piece, time.time())
        while piece:
            piece = piece[os.write(_STDOUT, piece) :]

    def is_complete(self) -> bool:
        if not self.part.is_limited:
            return False
        processes = [self.progress.process()] if self.progress else self._recorded.read()
        return self.part.is_complete(processes)

    def memory_error(self) -> str | None:
        """Return the error for lack of memory that ended a process, if one did."""
        errors = [process.error for process in self._recorded.read()]
        return next((error for error in errors if memory_that_ran_out(error)), None)

    def wrong_ranks(self, launched: int) -> str | None:
        return wrong_ranks(self._recorded.read(), launched)

    def summary(self) -> StepSummary:
        processes, progress = self._recorded.read(), self.progress
        summary = summarise(processes, self.part)
        notes = [*summary.notes, *self._recorded.problems()]
        if not self.part.is_limited:  # with a limit, they are ended before their end
            notes += [
                f"steps of {p.host}, process {p.pid}: {_NO_END}"
                for p in processes
                if not p.is_ended
            ]
        if summary.workers_work_together is False:
            notes.append(_NOT_TOGETHER)
        if progress is not None:
            shown = summarise([progress.process()], self.part)
            of_processes = {name: getattr(summary, name) for name in _OF_PROCESSES}
            steps, samples_seen = progress.total_steps(), progress.total_samples()
            summary = replace(shown, **of_processes, steps=steps, samples_seen=samples_seen)
            notes += shown.notes
            if not progress.marks:
                notes.append("no line of the output matches the progress pattern")
        elif self.part.is_limited and not summary.instrumented:
            notes.append(_NOT_RECORDED)
        return replace(summary, notes=tuple(dict.fromkeys(notes)))

    def window_columns(self, summary: StepSummary) -> list[dict[str, Any]]:
        windows = [dict(window) for window in summary.windows]
        if self.progress is not None:
            windows += self.progress.epoch_windows()
            if windows:
                windows[-1] |= {name: self.progress.last(name) for name in ("loss", "metric")}
        return windows


def wrong_ranks(processes: Sequence[ProcessSteps], launched: int) -> str | None:
    """Return how training processes differ from the ranks that were launched, or None.

    A command that starts ranks itself trains as a job of another size, or several times. Processes
    without a process group, each with a model of its own, are not judged here.
    """
    ranks: dict[int, set[int]] = defaultdict(set)
    for process in processes:
        if not process.steps:
            continue
        # What the process group says counts more than a variable that a script may set.
        has_group = (process.world_size or 1) > 1
        size = process.world_size if has_group else process.env_world_size
        if size is not None and size != launched:
            one = "one rank alone" if size == 1 else f"one of {size} ranks"
            return (
                f"process {process.pid} on {process.host} trained as {one}, but {launched} "
                f"{'was' if launched == 1 else 'were'} launched; {_REMEDY}"
            )
        if process.launched_rank is not None and process.rank is not None:
            ranks[process.launched_rank].add(process.rank)
    for launched_rank, own in sorted(ranks.items()):
        if len(own) > 1:
            return (
                f"rank {launched_rank} of the {launched} that were launched has started {len(own)} "
                f"ranks of its own; {_REMEDY}"
            )
    return None
