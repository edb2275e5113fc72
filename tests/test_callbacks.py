"""The callbacks of real trainers: Lightning and Hugging Face, on tiny networks."""

from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from wattlaw.store.store import Store
from wattlaw.workloads.torchvision_import import import_torchvision

import_torchvision()  # both trainers import it, and beside CPU-only torch it needs help

import lightning  # noqa: E402
import transformers  # noqa: E402

from wattlaw.callbacks.lightning import WattlawCallback as ForLightning  # noqa: E402
from wattlaw.callbacks.transformers import WattlawCallback as ForTransformers  # noqa: E402

#: Lightning's own class of warnings, as of an srun that is there and not used: xdist would import
#: it, and with it torchvision, where nobody has helped.
pytestmark = pytest.mark.filterwarnings(
    "ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"
)

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
        nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(callback, fails=False, **options):
    trainer = lightning.Trainer(
        max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[callback], **options,
    )  # fmt: skip
    loader = DataLoader(DATA, batch_size=16)
    trainer.fit(Regression(fails), loader, loader)


def phases(store) -> list[tuple[str, int]]:
    epochs = Store(store).pandas("epochs").sort_values("start_ns")
    return [*zip(epochs["phase"], epochs["epoch"].astype("Int64"), strict=True)]


def test_lightning_epochs_are_windows_and_validation_is_not_part_of_training(tmp_path):
    callback = ForLightning("lit", store=tmp_path, warmup_epochs=1, quiet=True)
    fit(callback, num_sanity_val_steps=0)
    found = [name for name, _ in phases(tmp_path)]
    assert found.count("evaluate") == 3
    epochs = Store(tmp_path).pandas("epochs").sort_values("start_ns").to_dict("records")
    for before, after in pairwise(epochs):  # none overlaps the next
        end_ns = before["start_ns"] + before["duration_s"] * 1e9
        assert end_ns <= after["start_ns"] + 1e6
    assert {row["epoch"] for row in epochs if row["phase"] == "train"} == {0, 1, 2}
    assert [row["warmup"] for row in epochs if row["epoch"] == 0] == [True] * sum(
        row["epoch"] == 0 for row in epochs
    )
    assert callback.record.status == "done"


def test_lightnings_sanity_check_is_not_an_evaluation(tmp_path):
    fit(ForLightning("lit", store=tmp_path, quiet=True), num_sanity_val_steps=1)
    found = [name for name, _ in phases(tmp_path)]
    assert (found[0], found.count("evaluate")) == ("sanity check", 3)


def test_a_fit_that_fails_is_a_run_that_failed_with_the_reason(tmp_path):
    callback = ForLightning("lit", store=tmp_path, quiet=True)
    with pytest.raises(ValueError, match="sample 7"):
        fit(callback, fails=True)
    (record,) = Store(tmp_path).records()
    assert (record.status, record.reason) == ("failed", "ValueError: sample 7 is broken")


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


def trained(folder, callback, **options):
    arguments = transformers.TrainingArguments(
        str(folder / "out"), num_train_epochs=2, per_device_train_batch_size=16, report_to=[],
        save_strategy="no", use_cpu=True, disable_tqdm=True, **options,
    )  # fmt: skip
    trainer = transformers.Trainer(
        Net(), arguments, train_dataset=Rows(), eval_dataset=Rows(), callbacks=[callback]
    )
    trainer.train()
    return trainer


def test_hugging_face_epochs_are_windows_and_evaluation_is_not_part_of_training(tmp_path):
    callback = ForTransformers("hf", store=tmp_path / "store", quiet=True)
    trained(tmp_path, callback, eval_strategy="epoch").evaluate()
    both = ("train", "evaluate")
    assert phases(tmp_path / "store") == [(name, epoch) for epoch in (0, 1) for name in both]
    assert callback.record.status == "done"


def test_an_evaluation_between_steps_interrupts_the_training_window(tmp_path):
    callback = ForTransformers("hf", store=tmp_path / "store", quiet=True)
    trained(tmp_path, callback, eval_strategy="steps", eval_steps=2)
    found = phases(tmp_path / "store")
    assert found.count(("evaluate", 0)) == 2
    assert found[:3] == [("train", 0), ("evaluate", 0), ("train", 0)]
