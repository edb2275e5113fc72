"""The net, its data and its training recipe."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from wattlaw.common.errors import NotAvailable
from wattlaw.workloads.data_loading import InMemory
from wattlaw.workloads.digits import TEST_IMAGES, Options
from wattlaw.workloads.workload import BaseWorkload

_FILE = Path("datasets", "data", "digits.csv.gz")
_SIDE, _GREYS = 8, 16
_SPLIT_SEED = 0


class DigitsCnn(BaseWorkload):
    """Two convolutions and two dense layers; SGD with momentum; top-1 accuracy.

    The learning rate grows with the square root of the global batch, which keeps training stable
    for batches from 16 to several hundred. There is no batch normalisation, so that one and
    several workers at the same global batch compute the same steps.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        images, labels = images_and_labels()
        self._parts = stratified(labels, TEST_IMAGES, _SPLIT_SEED)
        self._samples = torch.from_numpy(images), torch.from_numpy(labels)

    def model(self) -> nn.Module:
        width = self._options.width
        return nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(2 * width * 16, 2 * width),
            nn.ReLU(),
            nn.Linear(2 * width, 10),
        )

    def optimizer(
        self, model: nn.Module, global_batch: int, *, fused: bool | None
    ) -> torch.optim.Optimizer:
        rate = self._options.lr * (global_batch / 64) ** 0.5
        momentum = self._options.momentum
        return torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum, fused=fused)

    def loss(self, model: nn.Module, data: Any) -> torch.Tensor:
        images, labels = data
        return functional.cross_entropy(model(images), labels)

    def evaluate(self, model: nn.Module, data: Any) -> dict[str, torch.Tensor]:
        images, labels = data
        scores = model(images)
        return {
            "loss": functional.cross_entropy(scores, labels, reduction="sum"),
            "accuracy": (scores.argmax(1) == labels).sum(),
        }

    def _data(self, *, training: bool) -> InMemory:
        indices = self._parts[0 if training else 1]
        images, labels = self._samples
        return InMemory((images[indices], labels[indices]))


def images_and_labels() -> tuple[Any, Any]:
    """Return 1797 images (n, 1, 8, 8), float32 from 0 to 1, and their labels (n,), int64.

    They are read from scikit-learn's file. scikit-learn is not imported, because that would take
    each rank as long as importing torch.

    Raises ``NotAvailable`` if scikit-learn is not installed, or its file is in another place.
    """
    spec = importlib.util.find_spec("sklearn")
    locations = spec.submodule_search_locations if spec else None
    path = Path(next(iter(locations or [""]))) / _FILE
    if not path.is_file():
        raise NotAvailable(
            f"{path}: no data file of scikit-learn; pip install 'wattlaw[train]' installs it"
        )
    table = np.loadtxt(path, delimiter=",", dtype=np.float32)
    images = table[:, :-1].reshape(-1, 1, _SIDE, _SIDE) / _GREYS
    return images, table[:, -1].astype(np.int64)


def stratified(labels: Any, size: int, seed: int) -> tuple[Any, Any]:
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
    is_test = np.zeros(len(labels), dtype=bool)
    is_test[np.arange(size) * len(labels) // size] = True
    return np.sort(by_label[~is_test]), np.sort(by_label[is_test])
