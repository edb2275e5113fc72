"""What samples take before they are on a GPU: bytes in storage, seconds of a core.

The bundled workloads train on made samples by default. What their real data take is measured
with made files that are as large as the real ones; the rest is said where it is used.
"""

import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils import _pytree as pytree

from wattlaw.study.model import WorkloadSpec
from wattlaw.training.flops import first_batch
from wattlaw.workloads import catalogue
from wattlaw.workloads.workload import Dataset, Workload

#: Files with training samples of ImageNet 2012: ILSVRC2012_img_train.tar has so many bytes (the
#: usual "138 GB" are 2^30 bytes each), for so many JPEGs.
_IMAGENET_BYTES, _IMAGENET_IMAGES = 147_897_477_120, 1_281_167
#: ImageNet's images are about so large on average; at this quality made ones take as many bytes.
_HEIGHT, _WIDTH, _QUALITY = 375, 500, 90
_IMAGES, _MOLECULES, _SEQUENCES, _TIMES = 32, 1024, 512, 6
_PASSES, _MOST = 5, 512  # times that samples are read, and how many of them


class InputCost(NamedTuple):
    """What a sample takes, and in words how that is known."""

    stored_bytes_per_sample: float
    cpu_s_per_sample: float
    reads_files: bool  # of the dataset: whether loader processes make its samples
    words: str


def measure_input(spec: WorkloadSpec, workload: Workload, dataset: Dataset) -> InputCost:
    """Return what a sample of a workload's real data takes, measured here on one core.

    Of a bundled workload with its made samples: of files as large as the real ones, made for it.
    Of others: of the data they have, a sample's share of the files in the option ``data``. Files
    are read again and again, so from memory: time that storage takes is not in it.

    Parameters
    ----------
    spec
        The workload.
    workload, dataset
        Built from it: what is trained, and what it is trained on.
    """
    package = catalogue.entry(spec.name).factory.partition(":")[0].rpartition(".")[0]
    if package in _REAL and "data" not in spec.options:
        with tempfile.TemporaryDirectory(prefix="wattlaw-") as folder:
            return _REAL[package](spec, Path(folder) / "data")
    data = spec.options.get("data")
    if isinstance(data, str) and Path(data).is_dir():
        files = [path for path in Path(data).rglob("*") if path.is_file()]
        samples = len(dataset) + len(workload.evaluation_data())
        share = sum(path.stat().st_size for path in files) / samples
        return _measured(dataset, 64, share, f"{len(files)} files of {samples} samples")
    if not dataset.reads_files:
        return _measured(dataset, 64, 0.0, "samples in memory; nothing is read per epoch")
    words = "read as it is; in storage assumed to be as large as its tensors"
    return _measured(dataset, 64, tensor_bytes(first_batch(dataset, 1)), words)


def _photographs(spec: WorkloadSpec, folder: Path) -> InputCost:
    from PIL import Image

    from wattlaw.workloads.vision.synthetic import synthetic_images

    generator = torch.Generator().manual_seed(0)
    sizes = []
    for number in range(_IMAGES):
        label = number % 2
        (folder / "train" / f"class{label}").mkdir(parents=True, exist_ok=True)
        pixels = synthetic_images(torch.tensor([label]), _HEIGHT, _WIDTH, generator)[0]
        path = folder / "train" / f"class{label}" / f"{number}.jpg"
        image = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
        image.save(path, "JPEG", quality=_QUALITY)
        sizes.append(path.stat().st_size)
    dataset = _of_files(spec, source="folder", data=str(folder))
    return _measured(
        dataset,
        _IMAGES,
        _IMAGENET_BYTES / _IMAGENET_IMAGES,
        f"made JPEGs of {_WIDTH} x {_HEIGHT} pixels and {np.mean(sizes):,.0f} bytes, decoded, cut "
        f"and mirrored; stored: ImageNet's ILSVRC2012_img_train.tar, {_IMAGENET_BYTES:,} bytes of "
        f"{_IMAGENET_IMAGES:,} JPEGs",
    )


def _molecules(spec: WorkloadSpec, folder: Path) -> InputCost:
    catalogue.make_data(spec.name, folder, _MOLECULES, seed=0)
    size = (folder / "raw" / "qm9_v3.pt").stat().st_size
    dataset = _of_files(spec, source="qm9", data=str(folder))
    return _measured(
        dataset,
        128,
        size / _MOLECULES,
        "batches of 128 cut from memory, with their graphs; stored: a made file like QM9's, "
        f"{size:,} bytes of {_MOLECULES:,} molecules",
    )


def _text(spec: WorkloadSpec, folder: Path) -> InputCost:
    from wattlaw.workloads.language.masking import tokens_type

    catalogue.make_data(spec.name, folder, _SEQUENCES, seed=0)
    tokenizer = str(folder / "tokenizer")
    dataset = _of_files(spec, source="text", data=str(folder / "text"), tokenizer=tokenizer)
    options: Any = catalogue.validated(spec)
    tokens = options.sequence_length - 2
    width = np.dtype(tokens_type(options.vocab_size)).itemsize
    return _measured(
        dataset,
        64,
        tokens * width,
        f"made text, masked in batches of 64; stored: {tokens} tokens of {width} bytes, as the "
        "cache of tokenised WikiText-103 has them",
    )


def _fields(spec: WorkloadSpec, folder: Path) -> InputCost:
    import h5py

    options: Any = catalogue.validated(spec)
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
    dataset = _of_files(spec, source="era5", data=str(folder))
    states = options.steps + 1
    return _measured(
        dataset,
        1,
        states * 4 * math.prod(shape),
        f"a made HDF5 file, read and standardised; stored: {states} time steps of "
        f"{' x '.join(map(str, shape))} float32 as ERA5 has them (each is read for "
        f"{states} samples)",
    )


_REAL: dict[str, Callable[[WorkloadSpec, Path], InputCost]] = {
    "wattlaw.workloads.vision": _photographs,
    "wattlaw.workloads.molecules": _molecules,
    "wattlaw.workloads.language": _text,
    "wattlaw.workloads.weather": _fields,
}
#: Options of made samples, which do not go with files.
_OF_MADE = ("train_samples", "evaluation_samples")


def _of_files(spec: WorkloadSpec, **options: str) -> Dataset:
    kept: dict[str, Any] = {
        name: value for name, value in spec.options.items() if name not in _OF_MADE
    }
    files = WorkloadSpec(name=spec.name, options=kept | options)
    return catalogue.build(files).training_data()


def _measured(
    dataset: Dataset, batch: int, stored_bytes_per_sample: float, words: str
) -> InputCost:
    """Return an input with a sample's seconds of one core.

    Those of the quickest of a few passes, after a first one: others had less of a shared machine.
    """
    samples = min(len(dataset), _MOST)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    took = []
    try:
        for _ in range(_PASSES + 1):
            start_s = time.process_time()
            for begin in range(0, samples, batch):
                indices = np.arange(begin, min(begin + batch, samples))
                dataset.batch(indices, indices.astype(np.uint64))
            took.append(time.process_time() - start_s)
    finally:
        torch.set_num_threads(threads)
    cpu_s = min(took[1:]) / samples
    return InputCost(stored_bytes_per_sample, cpu_s, dataset.reads_files, words)


def tensor_bytes(data: Any) -> float:
    """Return the bytes of the tensors of a batch."""
    leaves = pytree.tree_leaves(data)
    return float(sum(one.nbytes for one in leaves if isinstance(one, torch.Tensor)))
