"""The reference loop for the language workload: transformers' ``Trainer``."""

import os
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from loop_process import Case, Loop, Moment
from wattlaw.common import registry
from wattlaw.workloads import catalogue

_POOL = 4096  # the number of different sequences, as for our loop


def language(
    case: Case, workload: Any, device: torch.device
) -> tuple[nn.Module, dict[str, Loop]]:  # fmt: skip
    """Return the loops of ``Trainer``, with its collator for masked language modelling.

    In ``same_head`` it trains our model, which computes scores of the predicted tokens only, on our
    batches. Its rate then differs from ours only because of the loop.
    """
    model_as_used = workload.model()
    state = {name: value.clone() for name, value in model_as_used.state_dict().items()}
    as_used = _trainer(case, model_as_used.net, *_sequences_and_collator(case, workload), device)
    model_same_head = workload.model()
    model_same_head.load_state_dict(state)
    dataset = workload.training_data()
    same_head = _trainer(case, _OwnLoss(model_same_head, workload), _Numbers(case.samples),
                    _our_collator(dataset), device)  # fmt: skip
    return model_as_used, {"as_used": as_used, "same_head": same_head}


class _OwnLoss(nn.Module):
    """Our model with the interface that ``Trainer`` needs: the result has the loss."""

    def __init__(self, model: nn.Module, workload: Any) -> None:
        super().__init__()
        self.model, self._workload = model, workload

    def forward(self, **data: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self._workload.loss(self.model, data)}


class _Numbers:
    """The numbers of samples; the collator makes the samples."""

    def __init__(self, samples: int) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, number: int) -> int:
        return number


def _our_collator(dataset: Any) -> Callable[[list[int]], Any]:
    def collate(numbers: list[int]) -> Any:
        indices = np.array(numbers)
        return dataset.batch(indices, indices.astype(np.uint64))

    return collate


def _sequences_and_collator(case: Case, workload: Any) -> tuple[Any, Any]:
    """Return unmasked sequences as in ``run_mlm.py``, and the collator that masks them."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast

    size = registry.load(catalogue.GROUP, case.workload).options(**case.options).vocab_size
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = special + [f"word{number}" for number in range(len(special), size)]
    table = Tokenizer(WordLevel({word: place for place, word in enumerate(words)}, "[UNK]"))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=table,
        **dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), special,
                   strict=True)),
    )  # fmt: skip
    dataset = workload.training_data()
    number = min(len(dataset), _POOL)
    pool = dataset.batch(np.arange(number), np.arange(number, dtype=np.uint64))
    ids = pool["input_ids"].scatter(1, pool["positions"], pool["labels"])
    ends = torch.zeros_like(ids[0])
    ends[0] = ends[-1] = 1
    features = [
        {"input_ids": row, "attention_mask": torch.ones_like(row), "special_tokens_mask": ends}
        for row in ids
    ]
    collator = DataCollatorForLanguageModeling(tokenizer=tokenizer, mlm_probability=0.15)
    return [features[number % len(features)] for number in range(case.samples)], collator


def _trainer(case: Case, model: nn.Module, dataset: Any, collator: Any,
             device: torch.device) -> Loop:  # fmt: skip
    """Return the loop of a ``Trainer``, timed from the start of its first epoch."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    options = registry.load(catalogue.GROUP, case.workload).options(**case.options)
    moments: list[Moment] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_epoch_begin(self, *_: Any, **__: Any) -> None:
            moments.append(Moment.now())

        def on_epoch_end(self, *_: Any, **__: Any) -> None:
            moments.append(Moment.now())

    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=tempfile.mkdtemp(dir=os.environ.get("TMPDIR")),
            per_device_train_batch_size=case.batch,
            learning_rate=options.lr,
            weight_decay=options.weight_decay,
            lr_scheduler_type="constant",
            max_grad_norm=0.0,  # ours does not clip
            optim="adamw_torch_fused" if case.fused else "adamw_torch",
            bf16=case.precision == "bf16",
            torch_compile=case.compile,
            use_cpu=device.type == "cpu",
            dataloader_num_workers=case.loader_workers,
            dataloader_persistent_workers=case.loader_workers > 0,
            remove_unused_columns=False,
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        ),
        data_collator=collator,
        train_dataset=dataset,
        callbacks=[Clock()],
    )
    # Each call creates a new loader. An additional epoch, not timed, starts its processes.
    skipped = int(case.loader_workers > 0)

    def loop(epochs: int) -> tuple[Moment, Moment]:
        moments.clear()
        trainer.args.num_train_epochs = epochs + skipped
        trainer.train()
        return moments[2 * skipped], moments[-1]

    return loop
