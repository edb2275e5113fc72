"""The workloads: a model, its training recipe and its metrics."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from wattlaw.errors import BadInput
from wattlaw.workloads.schedules import Constant, WarmupThenPlateau
from wattlaw.workloads.vision import InceptionV3Options, Options, ResNet50Options, Vgg16Options
from wattlaw.workloads.vision.images import Files, ImageData
from wattlaw.workloads.vision.nets import inception_v3, resnet50, vgg16
from wattlaw.workloads.vision.synthetic import Synthetic
from wattlaw.workloads.workload import Dataset, Schedule, means

_MIT_LR = 1e-5
_KIT_LR, _KIT_BATCH, _KIT_WARMUP_EPOCHS = 0.1, 256, 5
#: What the auxiliary head counts beside the main one (arXiv 1512.00567 calls for less than 1;
#: torchvision's reference training takes 0.4).
_AUX_WEIGHT = 0.4


class _Classifier:
    """What the nets share."""

    #: Whether a batch of one image has to come twice; see ``loss``.
    _twice_alone = False

    def __init__(self, options: Options) -> None:
        self._options = options

    def optimizer(
        self, model: nn.Module, global_batch: int, *, fused: bool | None
    ) -> torch.optim.Optimizer:
        """Return the recipe's SGD."""
        kit = self._options.recipe == "kit"
        rate = _KIT_LR * global_batch / _KIT_BATCH if kit else _MIT_LR
        return torch.optim.SGD(
            model.parameters(),
            lr=self._options.lr or rate,
            momentum=0.9 if kit else 0.0,
            weight_decay=1e-4 if kit else 0.0,
            fused=fused,
        )

    def schedule(
        self,
        optimizer: torch.optim.Optimizer,
        global_batch: int,  # noqa: ARG002
        epochs: int,  # noqa: ARG002
    ) -> Schedule:
        """Return the recipe's: a constant rate, or warm-up and plateau."""
        if self._options.recipe == "mit":
            return Constant()
        return WarmupThenPlateau(
            optimizer, warmup_epochs=_KIT_WARMUP_EPOCHS, patience=self._options.patience
        )

    def training_data(self) -> Dataset:
        """Return what is trained on: cropped and mirrored at random."""
        return self._data(training=True)

    def evaluation_data(self) -> Dataset:
        """Return what is evaluated on: the middle of each image."""
        return self._data(training=False)

    def loss(self, model: nn.Module, data: Any) -> torch.Tensor:
        """Return the mean cross-entropy of a batch, that of an auxiliary head added in part.

        Batch normalisation refuses a single value per channel. Where a net comes down to one
        pixel, a rank's single image is therefore taken twice, which leaves the mean as it is.
        """
        images, labels = data
        if self._twice_alone and len(labels) == 1:
            images, labels = images.repeat(2, 1, 1, 1), labels.repeat(2)
        scores = model(images)
        if not isinstance(scores, tuple):
            return functional.cross_entropy(scores, labels)
        main, aux = (functional.cross_entropy(each, labels) for each in scores)
        return main + _AUX_WEIGHT * aux

    def evaluate(self, model: nn.Module, data: Any) -> dict[str, torch.Tensor]:
        """Return summed cross-entropy, and how many labels are first and among the first five."""
        images, labels = data
        scores = model(images)
        first = scores.topk(min(5, scores.shape[1])).indices == labels[:, None]
        return {
            "loss": functional.cross_entropy(scores, labels, reduction="sum"),
            "top1": first[:, 0].sum(),
            "top5": first.sum(),
        }

    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Return the mean cross-entropy, top-1 and top-5 accuracy."""
        found = means(sums)
        return {name: found[name] for name in ("loss", "top1", "top5")}

    def _data(self, *, training: bool) -> Dataset:
        options = self._options
        if options.data is None:
            samples = options.train_samples if training else options.evaluation_samples
            return Synthetic(samples, options.image_size, options.classes, training=training)
        return ImageData(
            _files(options, Path(options.data), training), options.image_size, training
        )


def _files(options: Options, data: Path, training: bool) -> Files:
    if not data.is_dir():
        raise BadInput(f"data: no folder {data}")
    if options.source == "folder":
        from wattlaw.workloads.vision.folder import Folder

        return Folder(data, options.classes, training=training)
    from wattlaw.workloads.vision.tfrecords import Shards

    return Shards(data, options.classes, options.first_label, training=training)


class Vgg16(_Classifier):
    """VGG16. No batch normalisation: without dropout, one and several ranks compute the same."""

    def __init__(self, options: Vgg16Options) -> None:
        super().__init__(options)
        self._net = options

    def model(self) -> nn.Module:
        """Return a new net."""
        return vgg16(self._net)


class InceptionV3(_Classifier):
    """InceptionV3; its loss while training has the auxiliary head's in it."""

    def __init__(self, options: InceptionV3Options) -> None:
        super().__init__(options)
        self._net = options
        # The auxiliary head ends in one pixel, and so does the net for images below 107 pixels.
        self._twice_alone = options.aux or options.image_size < 107

    def model(self) -> nn.Module:
        """Return a new net."""
        return inception_v3(self._net)


class ResNet50(_Classifier):
    """ResNet50."""

    def __init__(self, options: ResNet50Options) -> None:
        super().__init__(options)
        self._net = options
        self._twice_alone = options.image_size == 32  # the last stage has one pixel

    def model(self) -> nn.Module:
        """Return a new net."""
        return resnet50(self._net)
