"""The training steps of a study's command on one host: recorded, ended at their limit, stored."""

import contextlib
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Self

from wattlaw.common.files import write_text
from wattlaw.running.instrumentation import STEPS_FOLDER
from wattlaw.running.instrumentation.observer import RUN, StepObserver
from wattlaw.running.instrumentation.printed_progress import ProgressReader, progress_pattern
from wattlaw.running.instrumentation.steady_state import MeasuredPart
from wattlaw.running.steps import other_batch
from wattlaw.running.training.environment import FIRST_OUTPUT, host_name, threads_of
from wattlaw.store.live import open_windows, windows_path, write_facts, write_window
from wattlaw.study.model import RunSpec

#: How often the recorded steps are read, and how long another host may take to show that all ranks
#: have their steps.
_POLL_S, _LATE_S = 0.25, 10.0
#: When it is looked at whether the ranks are those that were launched, besides at the end.
_CHECKS_S = (2.0, 10.0, 60.0, 300.0)
_PIECE_BYTES, _MOST_PIECES = 64 * 1024, 16


class CommandSteps(StepObserver):
    """Observes a command from before its ranks start, by environment variables that they get.

    Its nodes share ``live``. Node 0 writes samples and notes of all ranks.
    """

    def __init__(self, spec: RunSpec, live: Path, node: int = 0) -> None:
        measure, progress = spec.measure, spec.workload.progress
        self._spec, self._live, self._node = spec, live, node
        part = MeasuredPart()
        if measure.is_by_steps:
            part = MeasuredPart(measure.warmup_steps, measure.steps, measure.seconds)
        reader = ProgressReader(progress_pattern(progress.pattern)) if progress else None
        super().__init__(live / "steps", part, reader)
        self._marker = live / "has-steps"
        self._output: int | None = None
        self._folder: str | None = None
        self._next_s = 0.0
        self._checks_s = [time.monotonic() + after_s for after_s in _CHECKS_S]

    def __enter__(self) -> Self:
        os.environ.pop(STEPS_FOLDER, None)
        if self._spec.workload.instrument == "auto":
            os.environ[STEPS_FOLDER] = str(self.folder.absolute())
        if self.progress is not None:
            self._folder = tempfile.mkdtemp(prefix="wattlaw-")
            path = Path(self._folder) / "output"
            os.mkfifo(path, 0o600)
            # Open for both ends: the first rank finds a reader, and its end is no end of the file.
            self._output = os.open(path, os.O_RDWR | os.O_NONBLOCK)
            os.environ[FIRST_OUTPUT] = str(path)
        return self

    def __exit__(self, *_: object) -> None:
        if self._output is not None and self._folder is not None:
            os.close(self._output)
            shutil.rmtree(self._folder, ignore_errors=True)

    def are_complete(self) -> bool:
        """Say whether the ranks can be ended: they have the steps of the limit, or are others."""
        self._pass_output_on()
        if self._checks_s and time.monotonic() > self._checks_s[0]:
            del self._checks_s[0]
            if self.wrong_ranks(self._spec.setting.gpus) is not None:
                return True
        if not self.part.is_limited or time.monotonic() < self._next_s:
            return False
        self._next_s = time.monotonic() + _POLL_S
        if not self._marker.exists() and not self.is_complete():
            return False
        self._marker.touch()
        return True

    def were_complete(self) -> bool:
        """Say whether ranks of this host failed because those of another were ended."""
        end_s = time.monotonic() + (_LATE_S if self._spec.nodes > 1 else 0.0)
        while self.part.is_limited:
            self._next_s = 0.0
            if self.are_complete():
                return True
            if time.monotonic() >= end_s:
                break
            time.sleep(_POLL_S)
        return False

    def write(self, start_ns: int, duration_s: float) -> None:
        """Write this host's facts and windows, unless the command has marked windows itself.

        Steps that were seen become windows ``steps``. A command without epochs, or without
        measured steps where the study requests them, is also one window ``run``.
        """
        while self._pass_output_on():
            pass
        host, summary = host_name(), self.summary()
        if not windows_path(self._live, host).exists():
            windows = self.window_columns(summary)
            wanted = "steps" if self._spec.measure.is_by_steps else "train"
            is_measured = any(w["phase"] == wanted and not w["warmup"] for w in windows)
            if not is_measured:
                whole = {"epoch": 0, "phase": RUN, "warmup": False}
                windows.insert(0, whole | {"start_ns": start_ns, "duration_s": duration_s})
            with open_windows(self._live, host) as stream:
                for window in windows:
                    own = {"samples": None} if self._node else {}
                    write_window(stream, host, **window | own)
        batch, note = other_batch(summary.steps_by_samples, self._spec.global_batch)
        notes = [*summary.notes, *note]
        if notes and self._node == 0:
            write_text(self._live / f"notes.{host}.json", json.dumps(notes))
        seen = summary.facts(threads_of(os.environ)) | {"global_batch": batch}
        if self._spec.setting.dataset_fraction != 1:  # the data set that was seen is a part
            seen["dataset_samples"] = None
        write_facts(self._live, host, seen)

    def _pass_output_on(self) -> bool:
        """Write output of the first rank to the log and search it; say whether more may come."""
        for _ in range(_MOST_PIECES if self._output is not None else 0):
            try:
                piece = os.read(self._output or 0, _PIECE_BYTES)
            except BlockingIOError:
                return False
            with contextlib.suppress(OSError):  # a full disk is reported elsewhere
                self.take_output(piece)
        return self._output is not None
