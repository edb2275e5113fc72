"""The callback for Hugging Face's Trainer: ``Trainer(..., callbacks=[WattlawCallback("x")])``."""
# ruff: noqa: ARG002, D102 - the trainer's methods and arguments

from collections.abc import Mapping
from typing import Any

from transformers import TrainerCallback

from wattlaw.callbacks.training_callback import TrainingRecorder, rows_of, size_of_dataset
from wattlaw.running.instrumentation.hook._wattlaw.layouts import first_number

_PREFIX = "eval_"
#: What the Trainer adds to the results of an evaluation.
_TIMES = ("_runtime", "_per_second", "_time")


class WattlawCallback(TrainingRecorder, TrainerCallback):  # type: ignore[misc]
    """Records each training of a Hugging Face Trainer as a run; see ``TrainingRecorder``."""

    _epoch = 0
    _is_evaluating = False
    _hook: Any = None  # of the model, which sees each batch and its loss

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **others: Any
    ) -> None:
        # An exception has left an earlier run open.
        self._end(RuntimeError, "the earlier training did not end")
        self._epoch, self._is_evaluating = int(state.epoch or 0), False
        if not state.is_local_process_zero:
            return
        # auto_find_batch_size changes the batch, and not the arguments
        per_worker = (state.train_batch_size or args.train_batch_size) // max(1, args.n_gpu)
        self._begin(
            world_size=args.world_size * max(1, args.n_gpu),
            batch=None if _is_model_parallel(args) else per_worker,
            accumulation=args.gradient_accumulation_steps,
            loader=others.get("train_dataloader"),
            precision="bf16" if args.bf16 else "fp16" if args.fp16 else "fp32",
            epochs=state.num_train_epochs,
        )
        best = args.metric_for_best_model
        self._metric = self._metric or (best and best.removeprefix(_PREFIX))
        self._loss_factor = args.world_size if args.average_tokens_across_devices else 1
        if model is not None:
            self._hook = model.register_forward_hook(self._see_batch, with_kwargs=True)

    def _see_batch(self, model: Any, args: Any, inputs: Mapping[str, Any], outputs: Any) -> None:
        """Add the batch of a forward pass of the training to the current step."""
        if not model.training or self._is_evaluating:
            return
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else None
        # A loss that is divided by the items of the step is its part; others are means.
        is_part = inputs.get("num_items_in_batch") is not None
        if loss is not None and is_part:
            loss = loss * self._loss_factor
        self._add_batch(rows_of(args) or rows_of(inputs), loss, is_part=is_part)

    def on_epoch_begin(self, *_: Any, **__: Any) -> None:
        self._begin_epoch(self._epoch)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if _is_model_parallel(args):
            self._samples = None
        self._end_step(first_number(["LOCAL_WORLD_SIZE"]) or args.world_size)
        self._evaluate_if(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._leave()
        self._evaluate_if(control)
        self._epoch += 1

    def _evaluate_if(self, control: Any) -> None:
        """Begin the evaluation that the control flow requests; the Trainer reports only its end."""
        if self._track is not None and control.should_evaluate and not self._is_evaluating:
            self._begin_evaluation(self._epoch)
            self._is_evaluating = True

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: Any = None, **others: Any
    ) -> None:
        if self._is_evaluating:
            self._is_evaluating = False
            results = {
                name.removeprefix(_PREFIX): value
                for name, value in (metrics or {}).items()
                if name.startswith(_PREFIX)
                and not name.endswith(_TIMES)
                and isinstance(value, int | float)
            }
            self._end_evaluation(size_of_dataset(others.get("eval_dataloader")), results)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self._end()

    def _end(self, kind: type[BaseException] | None = None, error: object = None) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        super()._end(kind, error)


def _is_model_parallel(args: Any) -> bool:
    """Say whether several ranks may compute the same samples, so that batches do not add up."""
    return getattr(args, "parallelism_config", None) is not None
