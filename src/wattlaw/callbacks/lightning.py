"""The callback for Lightning: ``Trainer(callbacks=[WattlawCallback("my-run")])``."""

from typing import Any

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:
    from pytorch_lightning.callbacks import Callback

from wattlaw.launch.tracking import EVALUATE, TRAIN, Track, track


class WattlawCallback(Callback):  # type: ignore[misc]
    """Records the fit as a run: each epoch's training and validation are separate windows.

    Parameters
    ----------
    name
        The name of the run in the store.
    warmup_epochs
        The number of first epochs that are warm-up, which analyses exclude.
    **options
        Arguments of :func:`wattlaw.track`, such as ``store``.
    """

    def __init__(self, name: str | None = None, *, warmup_epochs: int = 0, **options: Any) -> None:
        super().__init__()
        self._name, self._warmup_epochs, self._options = name, warmup_epochs, options
        self._track: Track | None = None
        #: The record of the last run, after the fit.
        self.record: Any = None

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002 - their names
        """Begin the run."""
        if trainer.local_rank == 0:
            self._track = track(self._name, **self._options).__enter__()

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Begin the window of an epoch's training."""
        if self._track is not None:
            epoch = int(trainer.current_epoch)
            self._track.enter(TRAIN, epoch=epoch, warmup=epoch < self._warmup_epochs)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Begin the window of a validation, which interrupts that of the training."""
        if self._track is not None and trainer.sanity_checking:
            self._track.enter("sanity check")
        elif self._track is not None:
            self._track.enter(EVALUATE, epoch=trainer.current_epoch)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """End the window that was entered last."""
        if self._track is not None:
            self._track.leave()

    on_train_epoch_end = on_validation_end

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """End the run."""
        self._end(None, None)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        """End the run as failed."""
        self._end(type(exception), exception)

    def _end(self, kind: type[BaseException] | None, error: BaseException | None) -> None:
        if self._track is not None:
            self._track.__exit__(kind, error, None)
            self.record, self._track = self._track.record, None
