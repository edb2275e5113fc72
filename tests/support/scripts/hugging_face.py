"""transformers.Trainer with gradient accumulation and an evaluation after every six steps."""

import tempfile

import torch
from own_timer import EPOCHS, Timer, number
from transformers import Trainer, TrainerCallback, TrainingArguments

torch.set_num_threads(1)
rows = [{"x": torch.randn(4), "labels": torch.randn(1)} for _ in range(number("SAMPLES", 48))]


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)

    def forward(self, x, labels):
        output = self.linear(x)
        return {"loss": torch.nn.functional.mse_loss(output, labels), "logits": output}


class OwnTimer(TrainerCallback):
    def on_step_begin(self, arguments, *_, **__):
        timer.add(arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps)

    def on_step_end(self, *_, **__):
        timer.step()

    def on_evaluate(self, *_, **__):
        timer.start()


timer = Timer(trainer="transformers")
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, num_train_epochs=EPOCHS, per_device_train_batch_size=number("BATCH", 4),
        gradient_accumulation_steps=number("ACCUMULATE", 2), eval_strategy="epoch",
        save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    callbacks = [OwnTimer(), *timer.callbacks]
    Trainer(
        Model(), arguments, train_dataset=rows, eval_dataset=rows[:12], callbacks=callbacks
    ).train()
timer.end()
