"""The callback for Lightning: ``Trainer(callbacks=[WattlawCallback("my-run")])``."""
# ruff: noqa: ARG002, D102 - the trainer's methods and arguments

from typing import Any

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:
    from pytorch_lightning.callbacks import Callback

from wattlaw.callbacks.training_callback import TrainingRecorder, rows_of

#: By the begin of a trainer's name, such as ``bf16-mixed``.
_PRECISIONS = {"16": "fp16", "bf16": "bf16"}


class WattlawCallback(TrainingRecorder, Callback):  # type: ignore[misc]
    """Records each fit of a Lightning trainer as a run; see ``TrainingRecorder``."""

    _updates = 0  # the trainer's count of optimizer steps
    _evaluated: int | None = 0
    _known: frozenset[str] = frozenset()  # results before the first evaluation
    _results: frozenset[str] = frozenset()  # results of evaluations

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # after the sanity check
        self._updates, self._results = trainer.global_step, frozenset()
        if trainer.local_rank != 0:
            return
        loader, is_parallel = trainer.train_dataloader, _is_model_parallel(trainer)
        self._begin(
            world_size=trainer.world_size,
            batch=None if is_parallel else getattr(loader, "batch_size", None),
            accumulation=trainer.accumulate_grad_batches,
            loader=loader,
            precision=_PRECISIONS.get(str(trainer.precision).partition("-")[0], "fp32"),
            epochs=trainer.max_epochs,
        )

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self._begin_epoch(int(trainer.current_epoch))

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if trainer.lightning_module.automatic_optimization and hasattr(loss, "detach"):
            loss = loss * trainer.accumulate_grad_batches  # Lightning has divided it
        self._add_batch(None if _is_model_parallel(trainer) else rows_of(batch), loss)
        if trainer.global_step > self._updates:
            self._updates = trainer.global_step
            self._end_step(trainer.num_devices)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._evaluated, self._known = 0, frozenset(trainer.callback_metrics) - self._results
        self._begin_evaluation(trainer.current_epoch)

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, *_: Any
    ) -> None:
        rows = rows_of(batch)
        is_known = self._evaluated is not None and rows is not None
        self._evaluated = (self._evaluated or 0) + (rows or 0) if is_known else None

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self._results = frozenset(trainer.callback_metrics) - self._known
        results = {n: v for n, v in trainer.callback_metrics.items() if n in self._results}
        self._end_evaluation(self._evaluated and self._evaluated * trainer.num_devices, results)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._leave()

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        self._end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._end(type(exception), exception)


def _is_model_parallel(trainer: Any) -> bool:
    """Say whether several ranks compute the same samples, so that batches do not add up."""
    return type(trainer.strategy).__name__ == "ModelParallelStrategy"
