"""Logs the result of a tracked run to the run that is open in W&B, MLflow or TensorBoard."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

from wattlaw.common.errors import NotAvailable
from wattlaw.common.text import join_names
from wattlaw.running.summary import TrackResult

Sink = Callable[[Mapping[str, Any]], object]


def _wandb(_: str) -> Sink:
    import wandb

    if (run := wandb.run) is None:
        raise ValueError("no run of W&B is open; call wandb.init() before")
    return lambda values: run.summary.update(dict(values))


def _mlflow(_: str) -> Sink:
    import mlflow

    if (run := mlflow.active_run()) is None:
        raise ValueError("no run of MLflow is open; call mlflow.start_run() before")
    client, run_id = mlflow.MlflowClient(), run.info.run_id

    def write(values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            add = client.set_tag if isinstance(value, str) else client.log_metric
            add(run_id, name, value)

    return write


def _tensorboard(name: str) -> Sink:
    from tensorboardX import SummaryWriter

    def write(values: Mapping[str, Any]) -> None:
        with SummaryWriter(comment=f"-{name}") as writer:
            for tag, value in values.items():
                add = writer.add_text if isinstance(value, str) else writer.add_scalar
                add(tag, value, 0)

    return write


_SINKS = {"wandb": _wandb, "mlflow": _mlflow, "tensorboard": _tensorboard}
_EXTRAS = {"tensorboard": "import"}  # others have their own name


def result_logger(log_to: str, name: str) -> Callable[[TrackResult], None]:
    """Return what logs a result; an error of it is a warning.

    Raises ``ValueError`` if no run is open, and ``NotAvailable`` without the package.
    """
    if log_to not in _SINKS:
        raise ValueError(f"log_to: {log_to!r:.80}; allowed: {join_names(list(_SINKS))}")
    try:
        sink = _SINKS[log_to](name)
    except ImportError as error:
        extra = _EXTRAS.get(log_to, log_to)
        raise NotAvailable(
            f'log_to="{log_to}": {error.name or error} is needed; pip install "wattlaw[{extra}]"'
        ) from None
    except ValueError as error:
        raise ValueError(f'log_to="{log_to}": {error}') from None

    def log(result: TrackResult) -> None:
        values = {f"wattlaw/{n}": v for n, v in result.to_dict().items() if v is not None}
        try:
            sink(values)
        except Exception as error:  # the training and its measurement go on
            warnings.warn(f"wattlaw: could not log to {log_to}: {error}", stacklevel=2)

    return log
