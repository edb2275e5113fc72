"""Synthetic images with the statistics of photographs, and folders of them."""

import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from wattlaw.workloads.workload import Indices, Seeds
from wattlaw_papers.workloads.data_sets import check_new_data
from wattlaw_papers.workloads.vision import IMAGENET_MEAN, IMAGENET_STD

_POOL = 256
_CHUNK = 16  # images generated at once, which limits the memory
_TRAINING_SEED, _EVALUATION_SEED, _CLASSES_SEED = 1, 2, 3
#: Shares of a pixel's variance; the rest is noise with a 1/f amplitude.
_CLASS_SHARE, _BRIGHTNESS_SHARE = 0.2, 0.1
#: The correlation of the noise of the channels: photographs have little colour.
_CORRELATION = 0.9
_COLOUR = 0.2  # distance between the channels' waves, in wavelengths
# Of data sets in files.
_FILE_CLASSES = 10
_GREY_EVERY = 16  # ImageNet has grey images too
_SHORTEST, _LONGEST = 100, 400


@dataclass
class Synthetic:
    """A pool of images that is repeated; training mirrors half of the samples at random."""

    samples: int
    image_size: int
    classes: int
    training: bool
    reads_files: bool = False
    _images: Tensor = field(init=False, repr=False)
    _labels: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(
            _TRAINING_SEED if self.training else _EVALUATION_SEED
        )
        pool, size = min(_POOL, self.samples), self.image_size
        self._labels = torch.arange(pool) * self.classes // pool
        images = torch.empty(
            (2 * pool if self.training else pool, 3, size, size), dtype=torch.uint8
        )
        for start in range(0, pool, _CHUNK):
            part = slice(start, min(start + _CHUNK, pool))
            images[part] = synthetic_images(self._labels[part], size, size, generator)
        if self.training:  # mirror images are stored, so that a batch is one copy
            images[pool:] = images[:pool].flip(3)
        self._images = images

    def __len__(self) -> int:
        return self.samples

    def batch(self, indices: Indices, seeds: Seeds) -> tuple[Tensor, Tensor]:
        rows = torch.from_numpy(indices % len(self._labels))
        labels = self._labels[rows]
        if self.training:
            is_mirrored = (seeds >> np.uint64(63)).astype(np.int64)
            rows = rows + len(self._labels) * torch.from_numpy(is_mirrored)
        return self._images.index_select(0, rows), labels


def synthetic_images(labels: Tensor, height: int, width: int, generator: torch.Generator) -> Tensor:
    """Return images (n, 3, height, width) of uint8 for labels (n,).

    Their channels have ImageNet's means and standard deviations and an amplitude that falls with
    the spatial frequency f as 1/f, as in photographs (Field 1987, J. Opt. Soc. Am. A 4, 2379).
    Each label adds its own pattern: a tint, and waves of one direction and length.
    """
    count = len(labels)
    noise = 1 - _CLASS_SHARE - _BRIGHTNESS_SHARE
    grey = _noise(count, 1, height, width, generator)
    colours = _noise(count, 3, height, width, generator)
    brightness = torch.randn((count, 1, 1, 1), generator=generator)
    pixels = (
        math.sqrt(noise * _CORRELATION) * grey
        + math.sqrt(noise * (1 - _CORRELATION)) * colours
        + math.sqrt(_CLASS_SHARE) * _patterns(labels, height, width)
        + math.sqrt(_BRIGHTNESS_SHARE) * brightness
    )
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in (IMAGENET_MEAN, IMAGENET_STD))
    return ((pixels * std + mean) * 255).round_().clamp_(0, 255).to(torch.uint8)


def _noise(
    count: int, channels: int, height: int, width: int, generator: torch.Generator
) -> Tensor:
    """Return noise with a 1/f amplitude, mean 0 and variance 1 in each channel."""
    # Drawn larger and cropped, because some sizes, such as 299, are slow to transform.
    rows, columns = (-(-side // 32) * 32 for side in (height, width))
    spectrum = torch.fft.rfft2(torch.randn((count, channels, rows, columns), generator=generator))
    frequency = torch.hypot(torch.fft.fftfreq(rows)[:, None], torch.fft.rfftfreq(columns))
    frequency[0, 0] = math.inf
    noise = torch.fft.irfft2(spectrum / frequency, s=(rows, columns))[..., :height, :width]
    std, mean = torch.std_mean(noise, (2, 3), keepdim=True)
    return torch.div(noise - mean, std)


def _patterns(labels: Tensor, height: int, width: int) -> Tensor:
    """Return each label's pattern (n, 3, height, width), with variance 1 over labels."""
    draws = [np.random.default_rng((_CLASSES_SEED, label)) for label in labels.tolist()]
    drawn = np.array([[*draw.random(5), *draw.standard_normal(3)] for draw in draws], np.float32)
    angle, cycles, *colours = torch.from_numpy(drawn).T[..., None, None, None]
    angle, cycles = math.pi * angle, 2 + 6 * cycles
    down, across = torch.linspace(0, 1, height)[:, None], torch.linspace(0, 1, width)
    along = cycles * (torch.cos(angle) * across + torch.sin(angle) * down)
    phases, tint = _COLOUR * torch.cat(colours[:3], 1), torch.cat(colours[3:], 1)
    return torch.sin(2 * math.pi * (along + phases)) + math.sqrt(0.5) * tint


def make_data(folder: Path, size: int, seed: int) -> None:
    """Write ``size`` training images and a quarter as many for validation.

    The files are ``train/CLASS/*.jpg`` and ``val/CLASS/*.jpg``. There are 10 classes; heights and
    widths are between 100 and 400 pixels.
    """
    check_new_data(folder, size, 2)
    generator = torch.Generator().manual_seed(seed)
    classes = min(_FILE_CLASSES, size)
    for part, count in (("train", size), ("val", max(2, size // 4))):
        for label in range(classes):
            (folder / part / f"class{label}").mkdir(parents=True)
        for number in range(count):
            sides = torch.randint(_SHORTEST, _LONGEST + 1, (2,), generator=generator)
            (height, width), label = sides.tolist(), number % classes
            image = synthetic_image(label, height, width, generator)
            image = image.convert("L") if number % _GREY_EVERY == _GREY_EVERY - 1 else image
            path = folder / part / f"class{label}" / f"{number:07}.jpg"
            image.save(path, "JPEG", quality=90)


def synthetic_image(label: int, height: int, width: int, generator: torch.Generator) -> Image.Image:
    pixels = synthetic_images(torch.tensor([label]), height, width, generator)[0]
    return Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
