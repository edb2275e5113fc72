"""What ``wattlaw.track`` does in a program that ``wattlaw run`` has started: windows, no more."""

import os
from pathlib import Path
from typing import Any, ClassVar, Self

from wattlaw.store.live import LiveWriter
from wattlaw.store.record import RunRecord
from wattlaw.store.run_folder import RunFolder
from wattlaw.telemetry.windows import open_windows, write_window
from wattlaw.training.environment import ATTEMPT, RUN_FOLDER, host_name


class NestedRecording:
    """The windows of a run that ``wattlaw run`` has started, and samples, around this program."""

    _stream: ClassVar[LiveWriter | None] = None  # one per process, however often it tracks

    def __init__(self, folder: RunFolder, attempt: int) -> None:
        self.folder, self._attempt = folder, attempt
        self.warmup_epochs = 0

    @classmethod
    def of_environment(cls) -> Self:
        """Return those of the run that this process's environment names."""
        return cls(RunFolder(Path(os.environ[RUN_FOLDER])), int(os.environ.get(ATTEMPT, "1")))

    def begin(self) -> None:
        """Find out what the study says of warm-up."""
        record = self.folder.read()
        if record is not None:
            self.warmup_epochs = record.spec.measure.warmup_epochs

    def window(self, **window: Any) -> None:
        """Write one finished window; a program that never does is one window as a whole."""
        host = host_name()
        if NestedRecording._stream is None:
            NestedRecording._stream = open_windows(self.folder.live(self._attempt), host)
        write_window(NestedRecording._stream, host, **window)

    def end(self, reason: str | None = None) -> RunRecord | None:
        """Do nothing: the program's exit code says how it went, and its launcher brings it home."""

    def end_at_exit(self, reason: str) -> None:
        """Do nothing."""

    def abandon(self) -> None:
        """Do nothing."""
