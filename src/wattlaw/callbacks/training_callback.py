"""What the callbacks of all trainers share: a run of each training, with the trainer's setting."""

from collections.abc import Iterable, Mapping
from typing import Any

from wattlaw.running.tracker import EVALUATE, TRAIN, Track, track

_MAX_EPOCHS = 100_000


class TrainingRecorder:
    """Records trainings: each epoch's training and evaluation are separate windows.

    The setting (world size, batch sizes, gradient accumulation, precision, epochs) is that of the
    trainer. Windows of training have samples, optimizer steps, mean loss and step times;
    evaluations have samples, loss and metric.

    Parameters
    ----------
    name
        The name of the run in the store.
    warmup_epochs
        The number of first epochs that are warm-up, which analyses exclude.
    metric
        The result of an evaluation that is the metric of the run; by default the first that is not
        a loss.
    **options
        Arguments of :func:`wattlaw.track`, such as ``store``, ``steps``, ``seconds`` and
        ``warmup_steps``. They replace what the trainer says.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        warmup_epochs: int = 0,
        metric: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self._name, self._warmup_epochs, self._options = name, warmup_epochs, options
        self._metric = metric
        self._track: Track | None = None
        self._batch: int | None = None  # of a worker, as its loader states it
        self._sees_batch = True  # the rows of some batch are as many: they are its samples
        self._begin_step()
        #: The record of the last run, after the training.
        self.record: Any = None

    def _begin(
        self, *, world_size: int, batch: int | None, accumulation: int, loader: Any, **setting: Any
    ) -> None:
        """Begin a run; ``batch`` is what a worker loads at once, if it is known."""
        if batch is not None:
            setting["global_batch"] = world_size * batch * accumulation
        if not 0 < (setting.get("epochs") or 0) <= _MAX_EPOCHS:
            setting["epochs"] = None
        setting["dataset_samples"] = size_of_dataset(loader) or None
        setting |= {"gpus": world_size, "gradient_accumulation": accumulation}
        self._batch, self._sees_batch = batch, batch is None
        self._begin_step()
        self._track = track(self._name, **setting | self._options).__enter__()

    def _begin_step(self) -> None:
        self._samples: int | None = 0  # of this process
        self._loss: Any = None  # the sum over the batches
        self._means = 0  # batches whose loss is a mean, not a part of the step's

    def _begin_epoch(self, epoch: int) -> None:
        if self._track is not None:
            self._track.enter(TRAIN, epoch=epoch, warmup=epoch < self._warmup_epochs)

    def _begin_evaluation(self, epoch: int) -> None:
        if self._track is not None:
            self._track.enter(EVALUATE, epoch=epoch)

    def _leave(self) -> None:
        if self._track is not None:
            self._track.leave()

    def _add_batch(self, samples: int | None, loss: Any, *, is_part: bool = False) -> None:
        """Add a batch to the current step, with its mean loss, or its part of the step's."""
        is_known = self._samples is not None and samples is not None
        self._sees_batch |= samples == self._batch
        self._samples = (self._samples or 0) + (samples or 0) if is_known else None
        if hasattr(loss, "detach"):
            loss = loss.detach().float().mean()
            self._loss = loss if self._loss is None else self._loss + loss
            self._means += not is_part

    def _end_step(self, local_ranks: int) -> None:
        """End an optimizer step; every worker of this host has loaded as much as this one."""
        if self._track is not None:
            samples = None if not self._samples else self._samples * local_ranks
            loss = self._loss if self._loss is None else self._loss / max(1, self._means)
            self._track.step(samples=samples, loss=loss)
        self._begin_step()

    def _end_evaluation(self, samples: int | None, results: Mapping[str, Any]) -> None:
        """End an evaluation with its results: numbers, or tensors with one element."""
        if self._track is None:
            return
        values = {name: float(value) for name, value in results.items()}
        loss = next((name for name in values if "loss" in name), None)
        metric = self._metric if self._metric in values else None
        metric = metric or next((name for name in values if "loss" not in name), None)
        self._track.metric_name = self._track.metric_name or metric
        self._track.log(
            samples=samples,
            loss=values.get(loss or ""),
            metric=values.get(metric or ""),
            metrics=values or None,
        )
        self._track.leave()

    def _end(self, kind: type[BaseException] | None = None, error: object = None) -> None:
        """End the run, as failed if there is an error."""
        if self._track is not None:
            if not self._sees_batch:  # such as packed sequences, or time as the first dimension
                self._track.steps_by_samples.clear()
            self._track.__exit__(kind, error, None)
            self.record, self._track = self._track.record, None


def rows_of(batch: Any) -> int | None:
    """Return the number of samples of a batch; None if it has no tensor that says so."""
    if hasattr(batch, "num_graphs"):  # of PyTorch Geometric
        return int(batch.num_graphs)
    if shape := getattr(batch, "shape", None):
        return int(shape[0])
    items: Iterable[Any] = batch if isinstance(batch, list | tuple) else ()
    if isinstance(batch, Mapping):
        items = batch.values()
    return next((rows for rows in map(rows_of, items) if rows is not None), None)


def size_of_dataset(loader: Any) -> int | None:
    """Return the number of samples of a loader's data set, if it has one."""
    try:
        return len(loader.dataset)
    except (AttributeError, TypeError):  # such as an iterable data set
        return None
