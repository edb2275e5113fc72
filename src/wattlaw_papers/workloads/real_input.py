"""Files like those of the papers' data sets, for the cost of reading them.

The workloads train on synthetic samples by default. These files have the size of the real ones.
"""

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from wattlaw.workloads.workload import RealInput

if TYPE_CHECKING:
    from wattlaw_papers.workloads import language, weather

#: Bytes (138 x 2^30) and JPEGs of ImageNet 2012's training data, ILSVRC2012_img_train.tar.
_IMAGENET_BYTES, _IMAGENET_IMAGES = 147_897_477_120, 1_281_167
#: The mean size of ImageNet's images, and the JPEG quality at which synthetic ones have as many
#: bytes.
_HEIGHT, _WIDTH, _QUALITY = 375, 500, 90
_IMAGES, _MOLECULES, _SEQUENCES, _TIMES = 32, 1024, 512, 6


def images(options: object, folder: Path) -> RealInput:  # noqa: ARG001 - of any size
    from wattlaw_papers.workloads.vision.synthetic_images import synthetic_image

    generator = torch.Generator().manual_seed(0)
    sizes = []
    for number in range(_IMAGES):
        label = number % 2
        (folder / "train" / f"class{label}").mkdir(parents=True, exist_ok=True)
        path = folder / "train" / f"class{label}" / f"{number}.jpg"
        synthetic_image(label, _HEIGHT, _WIDTH, generator).save(path, "JPEG", quality=_QUALITY)
        sizes.append(path.stat().st_size)
    return RealInput(
        {"source": "folder", "data": str(folder)},
        _IMAGES,
        _IMAGENET_BYTES / _IMAGENET_IMAGES,
        f"synthetic JPEGs of {_WIDTH} x {_HEIGHT} pixels and {np.mean(sizes):,.0f} bytes, "
        f"decoded, cropped and mirrored; stored: ImageNet's ILSVRC2012_img_train.tar, "
        f"{_IMAGENET_BYTES:,} bytes of {_IMAGENET_IMAGES:,} JPEGs",
    )


def molecules(options: object, folder: Path) -> RealInput:  # noqa: ARG001 - all are alike
    from wattlaw_papers.workloads.molecules.synthetic_molecules import make_data

    make_data(folder, _MOLECULES, seed=0)
    return RealInput(
        {"source": "qm9", "data": str(folder)},
        128,
        0.0,
        "batches of 128 cut from memory, with their graphs; nothing is read per epoch",
    )


def text(options: "language.Options", folder: Path) -> RealInput:
    from wattlaw_papers.workloads.language.masking import tokens_type
    from wattlaw_papers.workloads.language.synthetic_text import make_data

    make_data(folder, _SEQUENCES, seed=0)
    tokens = options.sequence_length - 2
    width = np.dtype(tokens_type(options.vocab_size)).itemsize
    return RealInput(
        {"source": "text", "data": str(folder / "text"), "tokenizer": str(folder / "tokenizer")},
        64,
        tokens * width,
        f"synthetic text, masked in batches of 64; stored: {tokens} tokens of {width} bytes, as "
        "the cache of tokenised WikiText-103 has them",
    )


def weather_states(options: "weather.Options", folder: Path) -> RealInput:
    import h5py

    shape = (options.channels, *options.image_size)
    (folder / "train").mkdir(parents=True)
    (folder / "stats").mkdir()
    draw = np.random.default_rng(0)
    with h5py.File(folder / "train" / "1979.h5", "w") as file:
        fields = file.create_dataset(
            "fields", (_TIMES, *shape), np.float32, chunks=(1, 1, *shape[1:])
        )
        for time_step in range(_TIMES):
            fields[time_step] = draw.standard_normal(shape, np.float32)
    ones = np.ones((1, options.channels, 1, 1), np.float32)
    np.save(folder / "stats" / "global_means.npy", 0 * ones)
    np.save(folder / "stats" / "global_stds.npy", ones)
    states = options.steps + 1
    return RealInput(
        {"source": "era5", "data": str(folder)},
        1,
        states * 4 * math.prod(shape),
        f"a synthetic HDF5 file, read and standardised; stored: {states} time steps of "
        f"{' x '.join(map(str, shape))} float32 as ERA5 has them (each is read for "
        f"{states} samples)",
    )
