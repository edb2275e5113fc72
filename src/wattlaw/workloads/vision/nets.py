"""torchvision's nets, full size or reduced, for images as they come: 8-bit integers."""

import math
from typing import Any

import torch
from torch import nn

from wattlaw.workloads.torchvision_import import import_torchvision
from wattlaw.workloads.vision import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    InceptionV3Options,
    ResNet50Options,
    Vgg16Options,
)

import_torchvision()
from torchvision.models import inception, resnet, vgg  # noqa: E402

#: The first stage of VGG16, by which its other widths are told.
_VGG_WIDTH = 64


class OfPixels(nn.Module):
    """A net behind the normalisation of its images.

    Images cross to the device as (n, 3, h, w) of uint8, a quarter of what float32 would take,
    and leave no normalising to the CPU.
    """

    scale: torch.Tensor
    shift: torch.Tensor

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        mean, std = (torch.tensor(each).view(3, 1, 1) for each in (IMAGENET_MEAN, IMAGENET_STD))
        self.register_buffer("scale", 1 / (255 * std), persistent=False)
        self.register_buffer("shift", -mean / std, persistent=False)

    def forward(self, images: torch.Tensor) -> Any:
        """Return what the net makes of the images: scores (n, classes), or several of them."""
        return self.net(images.to(self.scale.dtype) * self.scale + self.shift)


def vgg16(options: Vgg16Options) -> nn.Module:
    """Return VGG16 (configuration D of arXiv 1409.1556), of any width.

    torchvision's class has one width of classifier. Its layers are therefore put in anew, in the
    order and with the initial values of torchvision: at full width both are the same net.
    """
    widths = [
        width if isinstance(width, str) else width * options.width // _VGG_WIDTH
        for width in vgg.cfgs["D"]
    ]
    with torch.device("meta"):  # takes neither memory nor random numbers
        net = vgg.VGG(nn.Sequential(), init_weights=False, dropout=options.dropout)
    hidden = net.classifier[0].out_features * options.width // _VGG_WIDTH
    net.features = vgg.make_layers(widths)
    net.classifier[0] = nn.Linear(8 * options.width * 7 * 7, hidden)
    net.classifier[3] = nn.Linear(hidden, hidden)
    net.classifier[6] = nn.Linear(hidden, options.classes)
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(layer, nn.Linear):
            # Fewer inputs count for more each, so that narrow nets learn as well.
            nn.init.normal_(layer.weight, 0, 0.01 * math.sqrt(_VGG_WIDTH / options.width))
        if isinstance(layer, nn.Conv2d | nn.Linear) and layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return OfPixels(net)


def inception_v3(options: InceptionV3Options) -> nn.Module:
    """Return InceptionV3 (arXiv 1512.00567); while training with ``aux`` it gives two scores.

    The initial values are torchvision's own truncated normal ones.
    """
    return OfPixels(
        inception.Inception3(
            num_classes=options.classes,
            aux_logits=options.aux,
            init_weights=True,
            dropout=options.dropout,
        )
    )


def resnet50(options: ResNet50Options) -> nn.Module:
    """Return ResNet50 (arXiv 1512.03385, with the stride in the 3 x 3 convolution)."""
    return OfPixels(
        resnet.ResNet(resnet.Bottleneck, list(options.blocks), num_classes=options.classes)
    )
