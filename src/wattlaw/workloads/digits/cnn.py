"""The net, its data and its training recipe."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional

from wattlaw.workloads.batches import evaluation_parts, training_parts
from wattlaw.workloads.digits import Options
from wattlaw.workloads.workload import Batch, Loader, Shard, Sums

_SPLIT_SEED = 0
_TEST_SAMPLES = 360


class DigitsCnn:
    """Two convolutions and two dense layers; SGD with momentum; top-1 accuracy.

    The learning rate grows with the square root of the global batch, which keeps this small
    problem stable from batches of 16 to several hundred. No batch normalisation, so that one
    and several workers at the same global batch compute the same updates.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        images, labels = load_digits(return_X_y=True)
        split = train_test_split(
            images.reshape(-1, 1, 8, 8).astype(np.float32) / 16.0,
            labels.astype(np.int64),
            test_size=_TEST_SAMPLES,
            stratify=labels,
            random_state=_SPLIT_SEED,
        )
        train_x, test_x, train_y, test_y = (torch.from_numpy(part) for part in split)
        self._train, self._test = (train_x, train_y), (test_x, test_y)

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

    def optimizer(self, model: nn.Module, global_batch: int) -> torch.optim.Optimizer:
        """Return SGD with momentum."""
        rate = self._options.lr * (global_batch / 64) ** 0.5
        return torch.optim.SGD(model.parameters(), lr=rate, momentum=self._options.momentum)

    def training_loader(self, shard: Shard) -> Loader:
        """Return shuffled training batches."""
        return _Images(*self._train, shard, training=True)

    def evaluation_loader(self, shard: Shard) -> Loader:
        """Return the test images, each once over all ranks."""
        return _Images(*self._test, shard, training=False)

    def loss(self, model: nn.Module, data: Any) -> torch.Tensor:
        """Return the mean cross-entropy of a batch."""
        images, labels = data
        return functional.cross_entropy(model(images), labels)

    def evaluate(self, model: nn.Module, data: Any) -> Sums:
        """Return summed cross-entropy and the number of images classified rightly."""
        images, labels = data
        scores = model(images)
        return Sums(
            loss=functional.cross_entropy(scores, labels, reduction="sum"),
            metric=(scores.argmax(1) == labels).sum(),
        )


class _Images:
    """Images in memory; a batch is an indexing, so that no loader process is needed."""

    def __init__(
        self, images: torch.Tensor, labels: torch.Tensor, shard: Shard, *, training: bool
    ) -> None:
        self._images, self._labels, self._shard = images, labels, shard
        self._training = training

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """Yield this rank's batches of an epoch."""
        count = len(self._labels)
        parts = (
            training_parts(count, self._shard, epoch)
            if self._training
            else evaluation_parts(count, self._shard)
        )
        for indices, global_size in parts:
            take = torch.from_numpy(indices)
            yield Batch((self._images[take], self._labels[take]), len(indices), global_size)
