"""Tiny networks in real trainers: Lightning and Hugging Face."""

import lightning
import torch
import transformers
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from wattlaw.callbacks.lightning import WattlawCallback as ForLightning
from wattlaw.callbacks.transformers import WattlawCallback as ForTransformers

__all__ = ["DATA", "ForLightning", "ForTransformers", "Regression", "fit", "lightning", "trained"]

DATA = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))


class Regression(lightning.LightningModule):
    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.net, self.fails = nn.Linear(8, 1), fails

    def training_step(self, batch, index):
        if self.fails and self.current_epoch == 1:
            raise ValueError("sample 7 is broken")
        return nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def validation_step(self, batch, index):
        error = self.net(batch[0]) - batch[1]
        self.log("val_loss", (error**2).mean())
        self.log("val_error", error.abs().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(callback, fails=False, **options):
    trainer = lightning.Trainer(
        max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[callback], **options,
    )  # fmt: skip
    trainer.fit(Regression(fails), DataLoader(DATA, batch_size=16), DataLoader(DATA, 32))
    return trainer


class Rows(Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index):
        return {"x": DATA[index][0], "labels": DATA[index][1]}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(8, 1)

    def forward(self, x, labels):
        found = self.net(x)
        return {"loss": nn.functional.mse_loss(found, labels), "logits": found}


def trained(folder, callback, batch=16, results=None, **options):
    arguments = transformers.TrainingArguments(
        str(folder / "out"), num_train_epochs=2, per_device_train_batch_size=batch, report_to=[],
        save_strategy="no", use_cpu=True, disable_tqdm=True, **options,
    )  # fmt: skip
    trainer = transformers.Trainer(
        Net(), arguments, train_dataset=Rows(), eval_dataset=Rows(), callbacks=[callback],
        compute_metrics=results,
    )  # fmt: skip
    trainer.train()
    return trainer
