"""Logs a tracked run to the run that the program has open in W&B, MLflow or TensorBoard."""

import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from wattlaw.common.errors import NotAvailable
from wattlaw.common.text import join_names
from wattlaw.running.recording import Recording
from wattlaw.running.summary import TrackResult, track_result

#: Writes values at a step; the last ones, with texts, at the end.
Sink = Callable[[Mapping[str, Any], int, bool], object]

_PREFIX, _NOT_LOGGED = "wattlaw/", ("name", "power_mean_w")
#: Reading the samples so far may take this share of the time of the program.
_SHARE = 0.01


def _wandb(_: str) -> Sink:
    import wandb

    if (run := wandb.run) is None:
        raise ValueError("no run of W&B is open; call wandb.init() before")
    # Without a commit, the values are part of what the program logs next: its steps stay its own.
    return lambda values, _, is_end: (
        run.summary.update(dict(values)) if is_end else run.log(dict(values), commit=False)
    )


def _mlflow(_: str) -> Sink:
    import mlflow

    if (run := mlflow.active_run()) is None:
        raise ValueError("no run of MLflow is open; call mlflow.start_run() before")
    client, run_id = mlflow.MlflowClient(), run.info.run_id

    def write(values: Mapping[str, Any], step: int, _: bool) -> None:
        for name, value in values.items():
            if isinstance(value, str):
                client.set_tag(run_id, name, value)
            else:
                client.log_metric(run_id, name, value, step=step)

    return write


def _tensorboard(name: str) -> Sink:
    from tensorboardX import SummaryWriter

    writer = SummaryWriter(comment=f"-{name}")

    def write(values: Mapping[str, Any], step: int, is_end: bool) -> None:
        for tag, value in values.items():
            add = writer.add_text if isinstance(value, str) else writer.add_scalar
            add(tag, value, step)
        if is_end:
            writer.close()

    return write


_SINKS = {"wandb": _wandb, "mlflow": _mlflow, "tensorboard": _tensorboard}
_EXTRAS = {"tensorboard": "import"}  # others have their own name


class RunLogger:
    """Raises ``ValueError`` if no run is open, and ``NotAvailable`` without the package."""

    def __init__(self, log_to: str, name: str) -> None:
        if log_to not in _SINKS:
            raise ValueError(f"log_to: {log_to!r:.80}; allowed: {join_names(list(_SINKS))}")
        # Imported before the block begins, whose windows would wait for it.
        from pyarrow import compute, csv  # noqa: F401

        from wattlaw.measure.telemetry import window_energy  # noqa: F401

        self._max = compute.max
        self._log_to, self._steps, self._windows, self._due_s = log_to, 0, 0, 0.0
        try:
            self._sink: Sink | None = _SINKS[log_to](name)
        except ImportError as error:
            extra = _EXTRAS.get(log_to, log_to)
            raise NotAvailable(
                f'log_to="{log_to}": {error.name or error} is needed; pip install '
                f'"wattlaw[{extra}]"'
            ) from None
        except ValueError as error:
            raise ValueError(f'log_to="{log_to}": {error}') from None

    def window(
        self, recording: Recording, start_ns: int, duration_s: float, window: Mapping[str, Any]
    ) -> None:
        """Log a window that has ended, and the power and energy since ``start_ns``."""
        steps, self._windows = window.get("steps"), self._windows + 1
        self._steps += steps or 0
        values: dict[str, Any] = {"step_time_s": duration_s / steps} if steps else {}
        with self._harmless():
            if (begin_s := time.monotonic()) >= self._due_s:
                samples = recording.folder.samples(1)
                if len(samples):
                    seen_s = max(0.0, (self._max(samples["t_ns"]).as_py() - start_ns) * 1e-9)
                    record, host = recording.record, recording.host
                    so_far = track_result(record, samples, host, start_ns, seen_s)
                    values |= {"energy_j": so_far.energy_j, "power_w": so_far.power_mean_w}
                now_s = time.monotonic()
                self._due_s = now_s + (now_s - begin_s) / _SHARE
            self._write(values)

    def end(self, result: TrackResult) -> None:
        values = {**result.to_dict(), "power_w": result.power_mean_w}
        with self._harmless():
            self._write({n: v for n, v in values.items() if n not in _NOT_LOGGED}, is_end=True)

    def _write(self, values: Mapping[str, Any], *, is_end: bool = False) -> None:
        known = {_PREFIX + name: value for name, value in values.items() if value is not None}
        if self._sink is not None and known:
            self._sink(known, self._steps or self._windows, is_end)

    @contextmanager
    def _harmless(self) -> Iterator[None]:
        """Log nothing more after an error: the training and its measurement go on."""
        try:
            yield
        except Exception as error:
            warnings.warn(f"wattlaw: could not log to {self._log_to}: {error}", stacklevel=4)
            self._sink = None
