"""lightning.Trainer with a validation set and its sanity check."""

import os

import lightning
import torch
from own_timer import EPOCHS, Timer, number
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(4, 1)

    def training_step(self, batch):
        timer.add(len(batch[0]), 1 / accumulate)
        return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def on_train_batch_end(self, *_):
        if self.trainer.global_step > len(timer.times_s):
            timer.step()

    def validation_step(self, batch):
        self.log("loss", torch.nn.functional.mse_loss(self.net(batch[0]), batch[1]))

    def on_validation_end(self):
        timer.start()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


samples, accumulate = number("SAMPLES", 46), number("ACCUMULATE", 1)
ranks = int(os.environ.get("WORLD_SIZE", "1"))
data = TensorDataset(torch.randn(samples, 4), torch.randn(samples, 1))
timer = Timer(trainer="lightning")
trainer = lightning.Trainer(
    accelerator="cpu", devices=ranks, strategy="ddp" if ranks > 1 else "auto",
    accumulate_grad_batches=accumulate, max_epochs=EPOCHS, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, callbacks=timer.callbacks,
)  # fmt: skip
trainer.fit(
    Module(), DataLoader(data, batch_size=number("BATCH", 4)), DataLoader(data, batch_size=8)
)
timer.end()
