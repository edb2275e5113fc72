"""The nets, full size or reduced, with their training recipes and metrics."""

import math
from abc import abstractmethod
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from wattlaw.common.errors import BadInput
from wattlaw.workloads.workload import BaseWorkload, Dataset, Schedule
from wattlaw_papers.workloads.schedules import WarmupThenPlateau
from wattlaw_papers.workloads.torchvision_import import import_torchvision
from wattlaw_papers.workloads.vision import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    InceptionV3Options,
    Options,
    ResNet50Options,
    Vgg16Options,
)
from wattlaw_papers.workloads.vision.images import Folder
from wattlaw_papers.workloads.vision.synthetic_images import Synthetic

import_torchvision()
from torchvision.models import inception, resnet, vgg  # noqa: E402

_MIT_LR = 1e-5
_KIT_LR, _KIT_BATCH, _KIT_WARMUP_EPOCHS = 0.1, 256, 5
#: The width of VGG16's first stage.
_VGG_WIDTH = 64

_Options = TypeVar("_Options", bound=Options)


class _Classifier(BaseWorkload, Generic[_Options]):
    #: Whether a batch of one image is doubled; see ``loss``.
    _doubles_single_image = False

    def __init__(self, options: _Options) -> None:
        self._options = options

    def model(self) -> nn.Module:
        return NormalisedImages(self._net())

    @abstractmethod
    def _net(self) -> nn.Module: ...

    def optimizer(
        self, model: nn.Module, global_batch: int, *, fused: bool | None
    ) -> torch.optim.Optimizer:
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
        self, optimizer: torch.optim.Optimizer, global_batch: int, epochs: int
    ) -> Schedule:
        if self._options.recipe == "mit":
            return super().schedule(optimizer, global_batch, epochs)
        return WarmupThenPlateau(
            optimizer, warmup_epochs=_KIT_WARMUP_EPOCHS, patience=self._options.patience
        )

    def loss(self, model: nn.Module, data: Any) -> Tensor:
        """Return the mean cross-entropy of a batch. Batch normalisation needs two values per
        channel: where a net reduces images to one pixel, a single image is doubled, which does not
        change the mean."""
        images, labels = data
        if self._doubles_single_image and len(labels) == 1:
            images, labels = images.repeat(2, 1, 1, 1), labels.repeat(2)
        return functional.cross_entropy(model(images), labels)

    def evaluate(self, model: nn.Module, data: Any) -> dict[str, Tensor]:
        images, labels = data
        scores = model(images)
        hits = scores.topk(min(5, scores.shape[1])).indices == labels[:, None]
        return {
            "loss": functional.cross_entropy(scores, labels, reduction="sum"),
            "top1": hits[:, 0].sum(),
            "top5": hits.sum(),
        }

    def _data(self, *, training: bool) -> Dataset:
        options = self._options
        if options.data is None:
            samples = options.train_samples if training else options.evaluation_samples
            return Synthetic(samples, options.image_size, options.classes, training=training)
        data = Path(options.data)
        if not data.is_dir():
            raise BadInput(f"data: no folder {data}")
        return Folder(data, options.classes, options.image_size, training=training)


class Vgg16(_Classifier[Vgg16Options]):
    """VGG16 (configuration D of arXiv 1409.1556) of any width. torchvision's classifier has one
    width: its layers are replaced, in the order and with the initial values of torchvision, so that
    at full width both are the same net."""

    def _net(self) -> Any:
        options = self._options
        widths = [
            width if isinstance(width, str) else width * options.width // _VGG_WIDTH
            for width in vgg.cfgs["D"]
        ]
        with torch.device("meta"):  # uses neither memory nor random numbers
            net: Any = vgg.VGG(nn.Sequential(), init_weights=False, dropout=options.dropout)
        hidden = net.classifier[0].out_features * options.width // _VGG_WIDTH
        net.features = vgg.make_layers(widths)
        net.classifier[0] = nn.Linear(8 * options.width * 7 * 7, hidden)
        net.classifier[3] = nn.Linear(hidden, hidden)
        net.classifier[6] = nn.Linear(hidden, options.classes)
        for layer in net.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(layer, nn.Linear):
                # Layers with fewer inputs get larger weights, so that narrow nets learn as well.
                nn.init.normal_(layer.weight, 0, 0.01 * math.sqrt(_VGG_WIDTH / options.width))
            if isinstance(layer, nn.Conv2d | nn.Linear) and layer.bias is not None:
                nn.init.zeros_(layer.bias)
        return net


class InceptionV3(_Classifier[InceptionV3Options]):
    """InceptionV3 (arXiv 1512.00567) without its auxiliary head for training, and with
    torchvision's truncated normal initial values."""

    def __init__(self, options: InceptionV3Options) -> None:
        super().__init__(options)
        self._doubles_single_image = options.image_size < 107  # the net ends in one pixel

    def _net(self) -> Any:
        options = self._options
        return inception.Inception3(
            options.classes, aux_logits=False, init_weights=True, dropout=options.dropout
        )


class ResNet50(_Classifier[ResNet50Options]):
    """ResNet50 (arXiv 1512.03385, with the stride in the 3 x 3 convolution)."""

    def __init__(self, options: ResNet50Options) -> None:
        super().__init__(options)
        self._doubles_single_image = options.image_size == 32  # the last stage has one pixel

    def _net(self) -> Any:
        blocks = list(self._options.blocks)
        return resnet.ResNet(resnet.Bottleneck, blocks, num_classes=self._options.classes)


class NormalisedImages(nn.Module):
    """A net that normalises its images, uint8 of shape (n, 3, height, width). Copied to the device
    as uint8, they take a quarter of the bytes of float32."""

    scale: Tensor
    shift: Tensor

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        mean, std = (torch.tensor(each).view(3, 1, 1) for each in (IMAGENET_MEAN, IMAGENET_STD))
        self.register_buffer("scale", 1 / (255 * std), persistent=False)
        self.register_buffer("shift", -mean / std, persistent=False)

    def forward(self, images: Tensor) -> Any:
        return self.net(images.to(self.scale.dtype) * self.scale + self.shift)
