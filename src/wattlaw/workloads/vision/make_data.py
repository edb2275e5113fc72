"""Writes small synthetic data sets in ImageNet's formats: an image folder and TFRecords."""

import io
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import torch
from PIL import Image
from tfrecord import TFRecordWriter

from wattlaw.workloads.vision.synthetic import synthetic_images
from wattlaw.workloads.workload import check_new_data

_CLASSES = 10
_PER_SHARD = 1000
_GREY_EVERY = 16  # ImageNet has grey images too
_SHORTEST, _LONGEST = 100, 400


def make_data(folder: Path, size: int, seed: int) -> None:
    """Write ``size`` training images and a quarter as many for validation, in both formats.

    The files are ``train/CLASS/*.jpg`` and ``val/CLASS/*.jpg`` for source ``folder``, and the same
    images as ``train-*`` and ``validation-*`` for source ``tfrecord`` (labels from 1). There are
    10 classes; heights and widths are between 100 and 400 pixels.

    Raises ``BadInput`` if the folder is not empty, or ``size`` is too small.
    """
    check_new_data(folder, size, 2)
    generator = torch.Generator().manual_seed(seed)
    classes = min(_CLASSES, size)
    _write(folder, ("train", "train"), size, classes, generator)
    _write(folder, ("val", "validation"), max(2, size // 4), classes, generator)


def _images(
    count: int, classes: int, generator: torch.Generator
) -> Iterator[tuple[Image.Image, int]]:
    for number in range(count):
        label = number % classes
        sides = torch.randint(_SHORTEST, _LONGEST + 1, (2,), generator=generator)
        height, width = sides.tolist()
        pixels = synthetic_images(torch.tensor([label]), height, width, generator)[0]
        image = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
        yield image.convert("L") if number % _GREY_EVERY == _GREY_EVERY - 1 else image, label


def _write(
    folder: Path, names: tuple[str, str], count: int, classes: int, generator: torch.Generator
) -> None:
    subfolder, prefix = names
    shards = max(2, -(-count // _PER_SHARD))
    for label in range(classes):
        (folder / subfolder / f"class{label}").mkdir(parents=True)
    with ExitStack() as stack:
        writers = [
            stack.enter_context(
                closing(TFRecordWriter(str(folder / f"{prefix}-{shard:05}-of-{shards:05}")))
            )
            for shard in range(shards)
        ]
        for number, (image, label) in enumerate(_images(count, classes, generator)):
            encoded = io.BytesIO()
            image.save(encoded, "JPEG", quality=90)
            name = f"{number:07}.jpg"
            (folder / subfolder / f"class{label}" / name).write_bytes(encoded.getvalue())
            features = _features(image, label, name, encoded.getvalue())
            writers[number * shards // count].write(features)


def _features(
    image: Image.Image, label: int, name: str, encoded: bytes
) -> dict[str, tuple[bytes | int, str]]:
    """Return the features of TensorFlow's ImageNet records without boxes and descriptions."""
    return {
        "image/encoded": (encoded, "byte"),
        "image/format": (b"JPEG", "byte"),
        "image/filename": (name.encode(), "byte"),
        "image/height": (image.height, "int"),
        "image/width": (image.width, "int"),
        "image/channels": (len(image.getbands()), "int"),
        "image/class/label": (label + 1, "int"),
        "image/class/synset": (f"class{label}".encode(), "byte"),
    }
