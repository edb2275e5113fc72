"""From image files to batches: decoding, cropping, mirroring."""

import io
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image

from wattlaw.errors import BadInput, one_line
from wattlaw.workloads.torchvision_import import import_torchvision
from wattlaw.workloads.workload import Indices, Seeds

import_torchvision()
from torchvision.transforms import RandomResizedCrop  # noqa: E402
from torchvision.transforms import functional as transforms  # noqa: E402

#: The share of an image's area, and the ratios of width to height, of a crop for training.
_SCALE, _RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
#: Share of a resized image's shorter side that evaluation keeps: 224 of 256 pixels.
_CENTER = 224 / 256


class Files(Protocol):
    """Labelled image files by index."""

    def __len__(self) -> int:
        """Return the number of images."""

    def read(self, index: int) -> tuple[bytes, int]:
        """Return an image file's bytes and its label, from 0.

        Raises
        ------
        wattlaw.errors.BadInput
            It cannot be read, or its label is out of range.
        """

    def location(self, index: int) -> str:
        """Return the location of an image, for messages."""


@dataclass(frozen=True)
class ImageData:
    """Image files with the transforms of training or evaluation, as usual in torchvision.

    Training crops 8 to 100 % of the area at random and mirrors half of the crops. Evaluation takes
    the centre.
    """

    files: Files
    image_size: int
    training: bool
    reads_files: bool = True

    def __len__(self) -> int:
        return len(self.files)

    def batch(self, indices: Indices, seeds: Seeds) -> tuple[torch.Tensor, torch.Tensor]:
        """Return images (n, 3, size, size) of uint8, red green blue, and labels (n,) of int64."""
        size = self.image_size
        images = np.empty((len(indices), 3, size, size), np.uint8)
        labels = np.empty(len(indices), np.int64)
        numbers = zip(indices.tolist(), seeds.tolist(), strict=True)
        with torch.random.fork_rng(devices=[]):
            for row, (index, seed) in enumerate(numbers):
                encoded, labels[row] = self.files.read(index)
                image = _decode(encoded, self.files, index)
                pixels = _random_crop(image, size, seed) if self.training else _centre(image, size)
                images[row] = pixels.transpose(2, 0, 1)
        return torch.from_numpy(images), torch.from_numpy(labels)


def _decode(encoded: bytes, files: Files, index: int) -> Image.Image:
    try:
        with Image.open(io.BytesIO(encoded)) as image:
            return image.convert("RGB")
    # What Pillow raises on damaged files; SyntaxError is its own for broken PNG and JPEG headers.
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise BadInput(
            f"{files.location(index)}: {len(encoded)} bytes that cannot be decoded "
            f"({one_line(error)}); allowed: a complete image file, such as JPEG"
        ) from error


def _random_crop(image: Image.Image, size: int, seed: int) -> Any:
    # torch.manual_seed would reseed the GPUs as well, and with them a model's dropout.
    torch.default_generator.manual_seed(seed)
    top, left, height, width = RandomResizedCrop.get_params(image, list(_SCALE), list(_RATIO))
    mirror = bool(torch.rand(()) < 0.5)
    crop = transforms.resized_crop(image, top, left, height, width, [size, size])
    pixels = np.asarray(crop)
    return pixels[:, ::-1] if mirror else pixels


def _centre(image: Image.Image, size: int) -> Any:
    resized = transforms.resize(image, [round(size / _CENTER)])
    return np.asarray(transforms.center_crop(resized, [size, size]))
