"""The net, its data and its training recipe."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from wattlaw.workloads.data_loading import InMemory
from wattlaw.workloads.digits import Options
from wattlaw.workloads.digits.images import images_and_labels, stratified
from wattlaw.workloads.schedules import ConstantRate
from wattlaw.workloads.workload import Dataset, means

_SPLIT_SEED = 0
_TEST_SAMPLES = 360


class DigitsCnn(ConstantRate):
    """Two convolutions and two dense layers; SGD with momentum; top-1 accuracy.

    The learning rate grows with the square root of the global batch, which keeps this small
    problem stable from batches of 16 to several hundred. No batch normalisation, so that one
    and several workers at the same global batch compute the same steps.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        images, labels = images_and_labels()
        train, test = stratified(labels, _TEST_SAMPLES, _SPLIT_SEED)
        x, y = torch.from_numpy(images), torch.from_numpy(labels)
        self._train, self._test = (x[train], y[train]), (x[test], y[test])

    def model(self) -> nn.Module:
        """Return the net for images of 1 x 8 x 8 and 10 classes."""
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
        """Return SGD with momentum."""
        rate = self._options.lr * (global_batch / 64) ** 0.5
        momentum = self._options.momentum
        return torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum, fused=fused)

    def training_data(self) -> Dataset:
        """Return the training images."""
        return InMemory(self._train)

    def evaluation_data(self) -> Dataset:
        """Return the test images."""
        return InMemory(self._test)

    def loss(self, model: nn.Module, data: Any) -> torch.Tensor:
        """Return the mean cross-entropy of a batch."""
        images, labels = data
        return functional.cross_entropy(model(images), labels)

    def evaluate(self, model: nn.Module, data: Any) -> dict[str, torch.Tensor]:
        """Return summed cross-entropy and the number of images classified rightly."""
        images, labels = data
        scores = model(images)
        return {
            "loss": functional.cross_entropy(scores, labels, reduction="sum"),
            "accuracy": (scores.argmax(1) == labels).sum(),
        }

    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Return the mean cross-entropy and the top-1 accuracy."""
        return means(sums)
