"""Folders of images, and batches of them: decoding, cropping, mirroring."""

import io
import os
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from wattlaw.common.errors import BadInput, one_line
from wattlaw.common.files import open_regular
from wattlaw.workloads.workload import Indices, Seeds
from wattlaw_papers.workloads.data_sets import VALIDATION_NAMES, existing
from wattlaw_papers.workloads.torchvision_import import import_torchvision

import_torchvision()
from torchvision.datasets.folder import IMG_EXTENSIONS, find_classes, make_dataset  # noqa: E402
from torchvision.transforms import RandomResizedCrop  # noqa: E402
from torchvision.transforms import functional as transforms  # noqa: E402

#: The range of a training crop's share of the area, and of its ratio of width to height.
_SCALE, _RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
#: Share of a resized image's shorter side in an evaluation crop: 224 of 256 pixels.
_CENTER = 224 / 256


class Folder:
    """The images of ``train`` or ``val``, a subfolder for each class, by class and name."""

    reads_files = True

    def __init__(self, data: Path, classes: int, image_size: int, *, training: bool) -> None:
        self._size, self._training = image_size, training
        numbers = _classes(data / "train")
        if len(numbers) > classes:
            given = f"{data / 'train'}: {len(numbers)} class folders"
            raise BadInput(f"{given}; allowed: up to {classes} (option classes)")
        self._root = data / "train" if training else existing(data, "val", *VALIDATION_NAMES)
        if not training and (unknown := sorted(set(_classes(self._root)) - set(numbers))):
            raise BadInput(f"{self._root / unknown[0]}: a class that is not in {data / 'train'}")
        images = make_dataset(self._root, numbers, extensions=IMG_EXTENSIONS, allow_empty=True)
        if not images:
            endings = ", ".join(IMG_EXTENSIONS)
            raise BadInput(f"{self._root}: its class folders have no images; allowed: {endings}")
        # Arrays, because a million Python objects would be copied into every loader process.
        names = [os.fsencode(os.path.relpath(path, self._root)) for path, _ in images]
        self._names = np.array(names)
        self._labels = np.array([label for _, label in images], np.int64)

    def __len__(self) -> int:
        return len(self._labels)

    def batch(self, indices: Indices, seeds: Seeds) -> tuple[torch.Tensor, torch.Tensor]:
        size = self._size
        images = np.empty((len(indices), 3, size, size), np.uint8)
        numbers = zip(indices.tolist(), seeds.tolist(), strict=True)
        with torch.random.fork_rng(devices=[]):
            for row, (index, seed) in enumerate(numbers):
                image = _image(self.path(index))
                if self._training:
                    # torch.manual_seed would also seed the GPUs and so change a model's dropout.
                    torch.default_generator.manual_seed(seed)
                    box = RandomResizedCrop.get_params(image, list(_SCALE), list(_RATIO))
                    step = -1 if bool(torch.rand(()) < 0.5) else 1  # mirrored or not
                    crop = transforms.resized_crop(image, *box, [size, size])
                    pixels = np.asarray(crop)[:, ::step]
                else:
                    resized = transforms.resize(image, [round(size / _CENTER)])
                    pixels = np.asarray(transforms.center_crop(resized, [size, size]))
                images[row] = pixels.transpose(2, 0, 1)
        return torch.from_numpy(images), torch.from_numpy(self._labels[indices])

    def path(self, index: int) -> Path:
        return self._root / os.fsdecode(self._names[index])


def _classes(root: Path) -> dict[str, int]:
    try:
        return dict[str, int](find_classes(root)[1])
    except OSError as error:
        raise BadInput(f"{root}: no class folders, each with images") from error


def _image(path: Path) -> Image.Image:
    try:
        with open_regular(path) as file:
            encoded = file.read()
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror or error}") from error
    try:
        with Image.open(io.BytesIO(encoded)) as image:
            return image.convert("RGB")
    # Pillow raises SyntaxError for broken PNG and JPEG headers.
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        what = f"{len(encoded)} bytes that cannot be decoded as an image ({one_line(error)})"
        raise BadInput(f"{path}: {what}") from error
