"""lightning.Trainer with a validation set and its sanity check."""

import os

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(4, 1)

    def training_step(self, batch):
        return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def validation_step(self, batch):
        self.log("loss", torch.nn.functional.mse_loss(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


data = TensorDataset(torch.randn(46, 4), torch.randn(46, 1))
trainer = lightning.Trainer(
    accelerator="cpu", max_epochs=2, logger=False, enable_checkpointing=False,
    enable_progress_bar=False,
)  # fmt: skip
trainer.fit(Module(), DataLoader(data, batch_size=4), DataLoader(data, batch_size=8))
print(f"RESULT pid={os.getpid()} steps={trainer.global_step} samples={2 * len(data)}")
