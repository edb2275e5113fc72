"""An image folder: a subfolder of ``train`` and of ``val`` for each class."""

import os
from pathlib import Path

import numpy as np

from wattlaw.errors import BadInput
from wattlaw.files import open_regular
from wattlaw.workloads.torchvision_import import import_torchvision

import_torchvision()
from torchvision.datasets.folder import IMG_EXTENSIONS, find_classes, make_dataset  # noqa: E402


class Folder:
    """Image files by number, in the order of their classes and names.

    Raises
    ------
    wattlaw.errors.BadInput
        Folders or images are missing, or there are more classes than the net can tell apart.
    """

    def __init__(self, data: Path, classes: int, *, training: bool) -> None:
        numbers = _classes(data / "train")
        if len(numbers) > classes:
            raise BadInput(
                f"{data / 'train'}: {len(numbers)} class folders; allowed: up to {classes} "
                "(option classes)"
            )
        self._root = data / ("train" if training else "val")
        if not training:
            strange = sorted(set(_classes(self._root)) - set(numbers))
            if strange:
                raise BadInput(
                    f"{self._root / strange[0]}: a class that is not in {data / 'train'}; "
                    "allowed: the class folders there"
                )
        found = _images(self._root, numbers)
        # Arrays, since a million Python objects would be copied into every loader process.
        names = [os.fsencode(os.path.relpath(path, self._root)) for path, _ in found]
        self._names = np.array(names)
        self._labels = np.array([label for _, label in found], np.int64)

    def __len__(self) -> int:
        return len(self._labels)

    def read(self, index: int) -> tuple[bytes, int]:
        """Return an image file's bytes and its label."""
        path = self._path(index)
        try:
            with open_regular(path) as file:
                return file.read(), int(self._labels[index])
        except OSError as error:
            raise BadInput(f"{path}: cannot be read: {error.strerror or error}") from error

    def location(self, index: int) -> str:
        """Return an image's path."""
        return str(self._path(index))

    def _path(self, index: int) -> Path:
        return self._root / os.fsdecode(self._names[index])


def _classes(root: Path) -> dict[str, int]:
    try:
        numbers: dict[str, int] = find_classes(root)[1]
    except OSError as error:
        raise BadInput(
            f"{root}: no class folders; allowed: a folder with a subfolder of images per class"
        ) from error
    return numbers


def _images(root: Path, numbers: dict[str, int]) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = make_dataset(
        root, numbers, extensions=IMG_EXTENSIONS, allow_empty=True
    )
    if not found:
        raise BadInput(
            f"{root}: no images in its class folders; allowed: files named "
            f"{', '.join('*' + ending for ending in IMG_EXTENSIONS)}"
        )
    return found
