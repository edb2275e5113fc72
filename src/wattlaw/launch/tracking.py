"""``wattlaw.track``: records the windows of any training loop, with a sampler."""

import atexit
import os
import re
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import JsonValue

from wattlaw.launch.recording import NestedRecording, Recording
from wattlaw.launch.summary import TrackResult, summary_line, track_result
from wattlaw.store.record import RunRecord
from wattlaw.store.store import Store
from wattlaw.study.model import Measure, RunSpec, Setting, WorkloadSpec
from wattlaw.terminal import escape_invisible
from wattlaw.training.environment import RUN_FOLDER

T = TypeVar("T")

KIND = "track"
TRAIN, EVALUATE = "train", "evaluate"
#: The rest of a training window after an evaluation is stored if it is longer, or has values.
_SHORTEST_S = 1e-3


@dataclass
class _OpenWindow:
    """A window that has not ended."""

    name: str
    epoch: int | None
    warmup: bool
    start_ns: int
    start_s: float
    values: dict[str, Any] = field(default_factory=dict)


class Track:
    """Records windows of a run; created by :func:`track` for a ``with`` statement.

    A measurement error does not stop the program: it causes one warning, and nothing is recorded
    from then on. Of several ranks on a host only the first records, so that no device is counted
    twice.
    """

    def __init__(
        self, name: str, recording: Recording | NestedRecording | None, *, quiet: bool
    ) -> None:
        self._recording, self._quiet = recording, quiet
        self._pid = os.getpid()  # a forked child must not record
        self._open: list[_OpenWindow] = []
        self._has_windows = False
        self._start_ns, self._start_s = 0, 0.0
        #: The stored run, after the ``with`` statement.
        self.record: RunRecord | None = None
        #: Time and energy of the block. Its values are None until the block has ended.
        self.result = TrackResult(
            name, reason=_WHY_NONE.get(type(recording), "the block has not ended")
        )

    def __enter__(self) -> Self:
        if self._recording is not None:
            try:
                self._recording.begin()
                atexit.register(self._at_exit)
            except Exception as error:  # measuring must not stop the measured
                self._stop(error)
        self._start_ns, self._start_s = _now()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if os.getpid() != self._pid:
            return
        while self._open:
            self.leave()
        duration_s = _now()[1] - self._start_s
        if isinstance(self._recording, Recording) and not self._has_windows:
            self._write(_OpenWindow(TRAIN, 0, False, self._start_ns, self._start_s),
                        self._start_s + duration_s)  # fmt: skip
        self._end(None if kind is None else f"{kind.__name__}: {error}", duration_s)

    def _at_exit(self) -> None:
        """Store the run of a program that exits inside the ``with`` statement."""
        if self._recording is not None and os.getpid() == self._pid:
            self._recording.end_at_exit("the program ended before the run did")
            self._recording = None

    def epochs(self, epochs: Iterable[T], *, warmup: int | None = None) -> Iterator[T]:
        """Yield the items of ``epochs``; each iteration is a training window.

        Parameters
        ----------
        epochs
            Such as ``range(10)``; iterations are numbered from 0.
        warmup
            The number of first epochs that are warm-up, which analyses exclude. By default the
            value of the study if this program is one of its runs, else 0.
        """
        if warmup is None:
            warmup = self._recording.warmup_epochs if self._recording is not None else 0
        for number, item in enumerate(epochs):
            with self.window(TRAIN, epoch=number, warmup=number < warmup):
                yield item

    def evaluation(self, epoch: int | None = None) -> Any:
        """Return a context for an evaluation window, which is not part of a training window."""
        return self.window(EVALUATE, epoch=epoch)

    @contextmanager
    def window(
        self, name: str, *, epoch: int | None = None, warmup: bool = False
    ) -> Iterator[None]:
        """Record the block as a window.

        A window inside another one is named ``outer/inner`` and is part of the outer one.
        Only ``evaluate`` interrupts a training window, which continues after it.
        """
        self.enter(name, epoch=epoch, warmup=warmup)
        try:
            yield
        finally:
            self.leave()

    def enter(self, name: str, *, epoch: int | None = None, warmup: bool = False) -> None:
        """Begin a window, where a ``with`` statement is not possible."""
        if not name or not name.isprintable() or "/" in name:
            raise ValueError(f"window: {name!r}; allowed: a printable name without '/'")
        if self._recording is None:
            return
        outer = self._open[-1] if self._open else None
        if outer is not None:
            epoch = outer.epoch if epoch is None else epoch
            warmup = warmup or outer.warmup
            if name == EVALUATE and outer.name == TRAIN:
                self._write(outer, _now()[1])
            else:
                name = f"{outer.name}/{name}"
        self._open.append(_OpenWindow(name, epoch, warmup, *_now()))

    def leave(self) -> None:
        """End the window that was entered last."""
        if self._recording is None or not self._open:
            return
        inner = self._open.pop()
        end_ns, end_s = _now()
        outer = self._open[-1] if self._open else None
        if outer is not None and inner.name == EVALUATE and outer.name == TRAIN:
            outer.start_ns, outer.start_s = end_ns, end_s
        elif inner.name == TRAIN and not inner.values and end_s - inner.start_s < _SHORTEST_S:
            return
        self._write(inner, end_s)

    def log(
        self,
        *,
        samples: int | None = None,
        steps: int | None = None,
        loss: float | None = None,
        metric: float | None = None,
    ) -> None:
        """Store values with the window that was entered last.

        Parameters
        ----------
        samples
            Samples that the processes of this host have processed in the window.
        steps
            Optimizer steps.
        loss, metric
            Means over the samples of the window: numbers, or tensors with one element.

        Raises
        ------
        ValueError
            A value is not a number.
        """
        kinds = (("samples", samples, int), ("steps", steps, int),
                 ("loss", loss, float), ("metric", metric, float))  # fmt: skip
        values = {
            name: _number(name, value, kind) for name, value, kind in kinds if value is not None
        }
        if self._open:
            self._open[-1].values |= values

    def _write(self, window: _OpenWindow, end_s: float) -> None:
        if self._recording is None:
            return
        self._has_windows = True
        try:
            self._recording.window(
                epoch=window.epoch,
                phase=window.name,
                warmup=window.warmup,
                start_ns=window.start_ns,
                duration_s=end_s - window.start_s,
                **window.values,
            )
            window.values = {}
        except OSError as error:
            self._stop(error)

    def _end(self, reason: str | None, duration_s: float) -> None:
        if self._recording is None:
            return
        try:
            self.record = self._recording.end(reason)
            if self.record is not None and isinstance(self._recording, Recording):
                folder, host = self._recording.folder, self._recording.host
                if not self._quiet:
                    print(escape_invisible(summary_line(self.record, folder)), file=sys.stderr)
                self.result = track_result(self.record, folder, host, self._start_ns, duration_s)
        except Exception as error:  # measuring must not stop the measured
            self._stop(error)
        self._recording = None
        atexit.unregister(self._at_exit)

    def _stop(self, error: Exception) -> None:
        warnings.warn(f"wattlaw: recording has stopped: {error}", stacklevel=3)
        self.result = replace(self.result, reason=f"the recording failed: {error}")
        if self._recording is not None:
            self._recording.abandon()
        self._recording = None


_WHY_NONE: dict[type, str] = {
    Recording: "the block has not ended",
    NestedRecording: "the 'wattlaw run' that started this program measures it",
    type(None): "another process of this host measures",
}


def track(
    name: str | None = None,
    store: str | Path = "wattlaw-store",
    *,
    gpus: int | None = None,
    global_batch: int | None = None,
    options: Mapping[str, JsonValue] | None = None,
    sample_hz: float = 10.0,
    assume_cpu_w: float | None = None,
    quiet: bool = False,
) -> Track:
    """Record the time and energy of a part of a program, in windows.

    Mark epochs and evaluations so that analyses can tell them apart. A block without marks is
    stored as one training window.

    Examples
    --------
    >>> import time
    >>> with wattlaw.track("my-training", store="tracked", global_batch=64, quiet=True) as run:
    ...     for epoch in run.epochs(range(2)):
    ...         time.sleep(0.05)  # train here
    ...         with run.evaluation():
    ...             time.sleep(0.05)  # evaluate here
    >>> run.result.duration_s > 0.2
    True
    >>> run.result.verdict in ("ok", "suspect", "partial", "implausible", "unavailable")
    True

    Parameters
    ----------
    name
        The name of the run in the store; by default the name of the program.
    store
        The folder of results, which is created if necessary.
    sample_hz
        Samples per second.
    assume_cpu_w
        Watts per busy core, for an estimate if nothing measures the processors.
    quiet
        Print no summary at the end.

    Raises
    ------
    ValueError
        An argument is invalid, such as a name with a blank.
    """
    name = name or Path(sys.argv[0] or "python").stem or "python"
    if not is_first_of_host():
        return Track(name, None, quiet=True)
    if RUN_FOLDER in os.environ:
        return Track(name, NestedRecording.of_environment(), quiet=True)
    gpus = (_first_number(_WORLDS) or 1) if gpus is None else gpus
    if global_batch is not None and gpus > 0 and global_batch % gpus:
        raise ValueError(
            f"wattlaw.track: global_batch: {global_batch} with {gpus} gpus; allowed: a multiple"
        )
    local_batch = None if global_batch is None else global_batch // max(gpus, 1)
    try:
        spec = RunSpec(
            workload=WorkloadSpec(name=name, options=dict(options or {})),
            setting=Setting(gpus=gpus, global_batch=global_batch, local_batch=local_batch),
            repeat=0,
            measure=Measure(
                epochs=1, warmup_epochs=0, sample_hz=sample_hz, assume_cpu_w=assume_cpu_w
            ),
            launch_kind=KIND,
        )
    except ValueError as error:
        lines = str(error).splitlines()
        raise ValueError(f"wattlaw.track: {' '.join(lines[1:3]) or error}") from None
    return Track(name, Recording(Store(Path(store)), spec), quiet=quiet)


#: Environment variables of launchers for the local rank, and for the number of all ranks.
_LOCAL_RANKS = (
    *("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"),
    *("MV2_COMM_WORLD_LOCAL_RANK", "PALS_LOCAL_RANKID", "FLUX_TASK_LOCAL_ID"),
)
_WORLDS = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


def _number(name: str, value: Any, kind: type[int] | type[float]) -> float:
    """Return a value as a plain number."""
    try:
        return kind(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise ValueError(f"log: {name}: {value!r:.80}; allowed: a number") from None


def is_first_of_host() -> bool:
    """Say whether this process is the first of its job on this host."""
    return not _first_number(_LOCAL_RANKS)


def _first_number(variables: Iterable[str]) -> int | None:
    """Return the first of some environment variables that is an integer below 10,000,000."""
    values = (os.environ.get(name, "") for name in variables)
    return next((int(text) for text in values if re.fullmatch("[0-9]{1,7}", text)), None)


def _now() -> tuple[int, float]:
    """Return the time on both clocks, after the GPU has finished its work."""
    torch = sys.modules.get("torch")
    try:
        if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()
    except Exception as error:  # such as during the capture of a CUDA graph
        warnings.warn(f"wattlaw: could not wait for the GPU: {error}", stacklevel=2)
    return time.time_ns(), time.perf_counter()
