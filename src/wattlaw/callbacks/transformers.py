"""The callback for Hugging Face's Trainer: ``Trainer(..., callbacks=[WattlawCallback("x")])``."""

from typing import Any

from transformers import TrainerCallback

from wattlaw.launch.tracking import EVALUATE, TRAIN, Track, track


class WattlawCallback(TrainerCallback):  # type: ignore[misc]
    """Records the training as a run: each epoch's training and evaluation are separate windows.

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
        self._name, self._warmup_epochs, self._options = name, warmup_epochs, options
        self._track: Track | None = None
        self._epoch = 0
        self._is_evaluating = False
        #: The record of the last run, after the training.
        self.record: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Begin the run, and end an earlier one that an exception has left open."""
        if self._track is not None:
            self._track.__exit__(RuntimeError, "the earlier training did not end", None)
        self._track, self._epoch = None, 0
        if state.is_local_process_zero:
            self._track = track(self._name, **self._options).__enter__()

    def on_epoch_begin(self, *_: Any, **__: Any) -> None:
        """Begin the window of an epoch's training."""
        if self._track is not None:
            warmup = self._epoch < self._warmup_epochs
            self._track.enter(TRAIN, epoch=self._epoch, warmup=warmup)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Begin the window of an evaluation that comes between two steps."""
        self._evaluate_if(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """End the window of an epoch's training; an evaluation may follow."""
        if self._track is not None:
            self._track.leave()
        self._evaluate_if(control)
        self._epoch += 1

    def on_evaluate(self, *_: Any, **__: Any) -> None:
        """End the window of an evaluation."""
        if self._track is not None and self._is_evaluating:
            self._track.leave()
        self._is_evaluating = False

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """End the run."""
        if self._track is not None:
            self._track.__exit__(None, None, None)
            self.record, self._track = self._track.record, None

    def _evaluate_if(self, control: Any) -> None:
        """Begin the evaluation that the control flow requests; the Trainer reports only its end."""
        if self._track is not None and control.should_evaluate and not self._is_evaluating:
            self._track.enter(EVALUATE, epoch=self._epoch)
            self._is_evaluating = True
