"""``wattlaw.track``: records the windows that a program marks in its training loop."""

import json
import math
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import JsonValue

from wattlaw.common.errors import BadInput
from wattlaw.common.terminal import escape_invisible
from wattlaw.running.instrumentation.hook._wattlaw.device_times import TORCH_GPUS
from wattlaw.running.instrumentation.hook._wattlaw.layouts import LAUNCHERS, first_number
from wattlaw.running.recording import JobStep, NestedRecording, Recording
from wattlaw.running.run_logger import result_logger
from wattlaw.running.steps import Step, StepClock, StepPlan, StepWindow
from wattlaw.running.summary import TrackResult, summary_line, track_result
from wattlaw.running.training.environment import RUN_FOLDER
from wattlaw.store.record import Facts, RunRecord
from wattlaw.store.store import Store
from wattlaw.study.base_model import Precision
from wattlaw.study.model import Measure, RunSpec, Train, WorkloadSpec
from wattlaw.study.setting import Setting

T = TypeVar("T")

KIND = "track"
TRAIN, EVALUATE, STEPS = "train", "evaluate", "steps"
#: The rest of a training window after an evaluation is stored if it is longer, or has values. On a
#: busy processor the end of an iteration takes some of this time without any training.
_SHORTEST_REST_S = 0.05
#: Environment variables of launchers for the local rank.
_LOCAL_RANKS = (
    *("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"),
    *("MV2_COMM_WORLD_LOCAL_RANK", "PALS_LOCAL_RANKID", "FLUX_TASK_LOCAL_ID"),
)
_WHY_NO_RESULT: dict[type, str] = {
    Recording: "the first task of this srun stores the run",
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
    precision: Precision = "fp32",
    gradient_accumulation: int = 1,
    dataset_samples: int | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    seconds: float | None = None,
    warmup_steps: int = 20,
    sample_hz: float = 10.0,
    assume_cpu_w: float | None = None,
    log_to: Literal["wandb", "mlflow", "tensorboard"] | None = None,
    quiet: bool = False,
) -> "Track":
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
    gpus
        Workers that train together; by default the number that the launcher has set.
    global_batch, options, precision, gradient_accumulation, epochs
        The setting of the run, as far as it is known. Only runs of the same setting are repeats.
    dataset_samples
        Samples of an epoch of the full data set, from which steps give the time of an epoch.
    steps, seconds
        Measure this many optimizer steps, or the steps of this time, instead of epochs. The
        program calls ``step`` after each. It continues when enough are measured.
    warmup_steps
        Steps before the measured ones. The first includes all since the start of the block.
    sample_hz
        Samples per second.
    assume_cpu_w
        Watts per busy core, for an estimate if nothing measures the processors.
    log_to
        Log the result at the end to the run that is open in W&B or MLflow, or to a new TensorBoard
        file in ``runs``.
    quiet
        Print no summary at the end.

    Raises
    ------
    ValueError
        An argument is invalid, such as a name with a blank, or no run is open to log to.
    wattlaw.common.errors.NotAvailable
        The package of ``log_to`` is not installed.
    """
    name = name or Path(sys.argv[0] or "python").stem or "python"
    if first_number(_LOCAL_RANKS):  # another process of this host is the first of the job
        return Track(name, None, quiet=True)
    if RUN_FOLDER in os.environ:
        return Track(name, NestedRecording(), quiet=True)
    gpus = (first_number(LAUNCHERS["env_world_size"]) or 1) if gpus is None else gpus
    if global_batch is not None and gpus > 0 and global_batch % gpus:
        raise ValueError(
            f"wattlaw.track: global_batch: {global_batch} with {gpus} gpus; allowed: a multiple"
        )
    local_batch = None if global_batch is None else global_batch // max(gpus, 1)
    step = JobStep.of_environment()
    window: dict[str, Any] = {"epochs": epochs or 1, "warmup_epochs": 0}
    if steps is not None or seconds is not None:
        given = {"steps": steps, "seconds": seconds}.items()
        window = {"warmup_steps": warmup_steps} | {k: v for k, v in given if v is not None}
    try:
        spec = RunSpec(
            workload=WorkloadSpec(name=name, options=dict(options or {})),
            setting=Setting(gpus=gpus, local_batch=local_batch, precision=precision),
            repeat=0,
            measure=Measure(**window, sample_hz=sample_hz, assume_cpu_w=assume_cpu_w),
            train=Train(gradient_accumulation=gradient_accumulation),
            launch_kind=KIND,
            nodes=1 if step is None else step.nodes,
        )
        facts = Facts(world_size=gpus, dataset_samples=dataset_samples)
    except (ValueError, BadInput) as error:
        lines = str(error).splitlines()
        raise ValueError(f"wattlaw.track: {' '.join(lines[1:3]) or error}") from None
    recording = Recording(Store(Path(store)), spec, facts, step)
    is_logged = log_to is not None and (step is None or step.task == 0)
    logger = result_logger(str(log_to), name) if is_logged else None
    return Track(name, recording, quiet=quiet, logger=logger)


class _Window(StepWindow):
    def __init__(
        self, name: str, epoch: int | None = None, *, warmup: bool = False, is_rest: bool = False
    ) -> None:
        super().__init__(None)
        self.name, self.epoch, self.warmup = name, epoch, warmup
        self.is_rest = is_rest  # of a training window, after an evaluation
        self.values: dict[str, Any] = {}


class Track:
    """Records windows of a run; created by :func:`track` for a ``with`` statement.

    A measurement error does not stop the program: it causes one warning, and nothing is recorded
    from then on. Of several ranks on a host only the first records, so that no device is counted
    twice.
    """

    def __init__(
        self,
        name: str,
        recording: Recording | NestedRecording | None,
        *,
        quiet: bool,
        logger: Callable[[TrackResult], None] | None = None,
    ) -> None:
        self._recording, self._quiet, self._logger = recording, quiet, logger
        self._pid = os.getpid()  # a forked child must not record
        self._open: list[_Window] = []
        self._block = _Window(TRAIN, 0)
        self._plan: StepPlan | None = None  # where steps are measured, not epochs
        self._part: _Window | None = None  # the open window of steps
        self._has_windows = False
        #: What the metric of evaluations is, such as accuracy, for the table of runs.
        self.metric_name: str | None = None
        #: How many steps had a number of samples of this host's processes, to compare the batch.
        self.steps_by_samples: Counter[int] = Counter()
        #: The stored run, after the ``with`` statement.
        self.record: RunRecord | None = None
        is_here = isinstance(recording, Recording)
        reason = "the block has not ended" if is_here else _WHY_NO_RESULT[type(recording)]
        #: Time and energy of the block. Its values are None until the block has ended.
        self.result = TrackResult(name, reason=reason)

    def __enter__(self) -> Self:
        with self._harmless():
            if self._recording is not None:
                self._recording.begin()
                if self._recording.measure.is_by_steps:
                    self._plan = StepPlan(self._recording.measure)
        _wait_for_gpus()
        self._block = _Window(TRAIN, 0)
        self._begin_part()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if os.getpid() != self._pid:
            return
        while self._open:
            self.leave()
        self._end_part()
        _wait_for_gpus()
        duration_s = self._block.elapsed_s
        has_block = isinstance(self._recording, Recording) or self._block.steps > 0
        if has_block and not self._has_windows and self._plan is None:
            self._write(self._block, duration_s)
        with self._harmless():
            reason = None if kind is None else f"{kind.__name__}: {error}"
            self._end(reason, duration_s)
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
            warmup = self._recording.measure.warmup_epochs if self._recording is not None else 0
        for epoch, item in enumerate(epochs):
            with self.window(TRAIN, epoch=epoch, warmup=epoch < warmup):
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
        if self._plan is not None:
            self._open.append(_Window(name))
            part = self._part
            if name == EVALUATE:
                self._end_part()
            elif name == TRAIN and (
                part is None or not part.steps or self._plan.may_split(part.steps, part.stepped_s)
            ):
                self._begin_part()
            return
        _wait_for_gpus()
        if self._open:
            outer = self._open[-1]
            epoch = outer.epoch if epoch is None else epoch
            warmup = warmup or outer.warmup
            if name == EVALUATE and outer.name == TRAIN:
                self._write(outer, outer.elapsed_s)
            else:
                name = f"{outer.name}/{name}"
        self._open.append(_Window(name, epoch, warmup=warmup))

    def leave(self) -> None:
        """End the window that was entered last."""
        if self._recording is None or not self._open:
            return
        inner = self._open.pop()
        if self._plan is not None:
            if inner.name == EVALUATE:
                self._begin_part()
            return
        _wait_for_gpus()
        duration_s = inner.elapsed_s
        if inner.name == EVALUATE and self._open and self._open[-1].name == TRAIN:
            outer = self._open.pop()
            self._open.append(_Window(TRAIN, outer.epoch, warmup=outer.warmup, is_rest=True))
        if not inner.is_rest or inner.values or inner.steps or duration_s >= _SHORTEST_REST_S:
            self._write(inner, duration_s)

    def step(self, *, samples: int | None = None, loss: Any = None) -> None:
        """Mark the end of an optimizer step, in a loop that calls this once for each.

        Where ``track`` measures steps, these calls make the windows. Otherwise the window that was
        entered last gets the number of steps, their samples, mean loss and step times. The GPU is
        waited for at the edges of windows only.

        Parameters
        ----------
        samples
            Samples that the processes of this host have processed in the step.
        loss
            Mean over these samples: a number, or a tensor with one element.

        Raises
        ------
        ValueError
            A value is not a number.
        """
        samples = None if samples is None else int(_number("step: samples", samples, int))
        if hasattr(loss, "detach"):
            if loss.numel() != 1:
                raise ValueError(f"step: loss: {loss.numel()} elements; allowed: a number")
            loss = loss.detach().float().reshape(())  # it stays on its device
        elif loss is not None:
            loss = _number("step: loss", loss, float)
        weight = 1 if samples is None else samples
        step = Step(samples) if loss is None else Step(samples, loss * weight, weight)
        window = (self._open or [self._block])[-1] if self._plan is None else self._part
        if self._recording is None or window is None:
            return
        with self._harmless():
            is_timed = self._plan is not None or window.steps > 0
            if not is_timed:  # the start of the first step is unknown
                window.clock = _step_clock()
            window.add(step, is_timed=is_timed)
            if samples is not None:
                self.steps_by_samples[samples] += 1
            if self._plan is not None and self._plan.ends_window(window.steps, window.stepped_s):
                self._begin_part()

    def log(
        self,
        *,
        samples: int | None = None,
        steps: int | None = None,
        loss: float | None = None,
        metric: float | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Store values with the window that was entered last; they replace those of ``step``.

        Parameters
        ----------
        samples
            Samples that the processes of this host have processed in the window.
        steps
            Optimizer steps.
        loss, metric
            Means over the samples of the window: numbers, or tensors with one element.
        metrics
            All results of an evaluation, by name.

        Raises
        ------
        ValueError
            A value is not a number.
        """
        counts = {"samples": samples, "steps": steps}
        means = {"loss": loss, "metric": metric}
        values: dict[str, Any] = {
            name: _number(f"log: {name}", value, int if name in counts else float)
            for name, value in (counts | means).items()
            if value is not None
        }
        if metrics is not None:
            plain = {name: _number(f"log: {name}", value, float) for name, value in metrics.items()}
            values["metrics"] = json.dumps({n: v for n, v in plain.items() if math.isfinite(v)})
        if self._open:
            self._open[-1].values |= values

    def _begin_part(self) -> None:
        """Begin a window of steps, and end the open one; once there are enough, only end it."""
        self._end_part()
        if self._plan is not None and self._recording is not None and not self._plan.is_complete:
            _wait_for_gpus()
            self._part = part = _Window(STEPS, warmup=self._plan.is_warmup)
            part.clock, part.values["from_step"] = _step_clock(), self._plan.steps

    def _end_part(self) -> None:
        part, self._part = self._part, None
        if self._plan is None or part is None or not part.steps:
            return
        _wait_for_gpus()
        steps_s = part.clock.steps_s()
        duration_s = math.fsum(steps_s)
        if not part.warmup:
            self._plan.add(steps_s, duration_s)
        self._write(part, duration_s)

    def _write(self, window: _Window, duration_s: float) -> None:
        if self._recording is None:
            return
        self._has_windows = True
        with self._harmless():
            values = window.columns() if window.steps else {}
            self._recording.window(
                epoch=window.epoch,
                phase=window.name,
                warmup=window.warmup,
                start_ns=window.start_ns,
                duration_s=duration_s,
                **(values | window.values),
            )

    def _end(self, reason: str | None, duration_s: float) -> None:
        recording = self._recording
        if not isinstance(recording, Recording):  # the launcher stores the run
            return
        batch, notes = recording.other_batch(self.steps_by_samples)
        if self._plan is not None:
            notes = (*self._plan.notes(), *notes)
            if not self._has_windows:
                reason = reason or self._plan.problem()
        known = {"metric": self.metric_name, "global_batch": batch}
        recording.facts = recording.facts.model_copy(update=known)
        self.record = recording.end(reason, notes)
        if self.record is None:
            self.result = replace(self.result, reason=_WHY_NO_RESULT[Recording])
        else:
            import pyarrow.parquet as pq

            folder = recording.folder
            if not self._quiet:
                print(escape_invisible(summary_line(self.record, folder)), file=sys.stderr)
            samples, start_ns = pq.read_table(folder.telemetry_path), self._block.start_ns
            self.result = track_result(self.record, samples, recording.host, start_ns, duration_s)
        if self._logger is not None:
            self._logger(self.result)

    @contextmanager
    def _harmless(self) -> Iterator[None]:
        """End the recording with an error of the block: measuring must not stop the measured."""
        try:
            yield
        except Exception as error:
            # The warning is about the line that called the public method.
            warnings.warn(f"wattlaw: recording has stopped: {error}", stacklevel=4)
            self.result = replace(self.result, reason=f"the recording failed: {error}")
            if self._recording is not None:
                self._recording.abandon()
            self._recording = None


def _number(name: str, value: Any, kind: type[int] | type[float]) -> float:
    try:
        return kind(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise ValueError(f"{name}: {value!r:.80}; allowed: a number") from None


def _step_clock() -> StepClock:
    gpu, devices = _gpus_in_use()
    return StepClock(gpu, devices[0])


def _wait_for_gpus() -> None:
    try:
        gpu, devices = _gpus_in_use()
        for device in devices if gpu is not None else ():
            gpu.synchronize(device)
    except Exception as error:  # such as during the capture of a CUDA graph
        warnings.warn(f"wattlaw: could not wait for the GPU: {error}", stacklevel=2)


def _gpus_in_use() -> tuple[Any, list[int | None]]:
    """Return torch's functions for GPUs, and those on which this process has memory.

    The one with the most comes first: the parameters are there, whatever the current device is.
    ``[None]``, the current device, where torch cannot say. No functions without a GPU in use.
    """
    torch = sys.modules.get("torch")
    for gpu in (getattr(torch, name, None) for name in TORCH_GPUS):
        # The first question asks no driver, which a program on the CPU must not start.
        if gpu is None or not gpu.is_initialized() or not gpu.is_available():
            continue
        try:
            held_bytes = {n: gpu.memory_reserved(n) for n in range(gpu.device_count())}
        except Exception:  # such as an allocator of the program's own
            held_bytes = {}
        most_first = sorted(held_bytes, key=lambda number: -held_bytes[number])
        return gpu, [number for number in most_first if held_bytes[number]] or [None]
    return None, [None]
