"""The cost of input: bytes in storage and seconds of a core per sample.

The bundled workloads train on synthetic samples by default. The cost of their real data is measured
with synthetic files of the same size.
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

from wattlaw.run.training.flops import first_batch
from wattlaw.study.model import WorkloadSpec
from wattlaw.workloads import catalogue
from wattlaw.workloads.workload import Dataset, Workload

#: Bytes (138 x 2^30) and JPEGs of ImageNet 2012's training data, ILSVRC2012_img_train.tar.
_IMAGENET_BYTES, _IMAGENET_IMAGES = 147_897_477_120, 1_281_167
#: The mean size of ImageNet's images, and the JPEG quality at which synthetic ones have as many
#: bytes.
_HEIGHT, _WIDTH, _QUALITY = 375, 500, 90
_IMAGES, _MOLECULES, _SEQUENCES, _TIMES = 32, 1024, 512, 6
_PASSES, _MAX_SAMPLES = 5, 512  # how often samples are read, and how many of them


class InputCost(NamedTuple):
    """The cost of a sample, and a description of how it was measured."""

    stored_bytes_per_sample: float
    cpu_s_per_sample: float
    reads_files: bool  # of the dataset: whether loader processes make its samples
    method: str


def measure_input(spec: WorkloadSpec, workload: Workload, dataset: Dataset) -> InputCost:
    """Return the cost of a sample of a workload's real data, measured on one core.

    A bundled workload with synthetic samples is measured with synthetic files of the real size.
    Other workloads are measured with their own data; stored bytes are a sample's share of the files
    in the option ``data``. Files are read repeatedly and so from memory, without the time of the
    storage.
    """
    package = catalogue.entry(spec.name).factory.partition(":")[0].rpartition(".")[0]
    if package in _COST_BY_PACKAGE and "data" not in spec.options:
        with tempfile.TemporaryDirectory(prefix="wattlaw-") as folder:
            return _COST_BY_PACKAGE[package](spec, Path(folder) / "data")
    data = spec.options.get("data")
    if isinstance(data, str) and Path(data).is_dir():
        files = [path for path in Path(data).rglob("*") if path.is_file()]
        samples = len(dataset) + len(workload.evaluation_data())
        share = sum(path.stat().st_size for path in files) / samples
        return _measured(dataset, 64, share, f"{len(files)} files of {samples} samples")
    if not dataset.reads_files:
        return _measured(dataset, 64, 0.0, "samples in memory; nothing is read per epoch")
    method = "read unchanged; assumed to be stored in as many bytes as its tensors"
    return _measured(dataset, 64, tensor_bytes(first_batch(dataset, 1)), method)


def _image_cost(spec: WorkloadSpec, folder: Path) -> InputCost:
    from PIL import Image

    from wattlaw_papers.workloads.vision.synthetic import synthetic_images

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
        f"synthetic JPEGs of {_WIDTH} x {_HEIGHT} pixels and {np.mean(sizes):,.0f} bytes, "
        f"decoded, cropped and mirrored; stored: ImageNet's ILSVRC2012_img_train.tar, "
        f"{_IMAGENET_BYTES:,} bytes of {_IMAGENET_IMAGES:,} JPEGs",
    )


def _molecule_cost(spec: WorkloadSpec, folder: Path) -> InputCost:
    catalogue.make_data(spec.name, folder, _MOLECULES, seed=0)
    dataset = _of_files(spec, source="qm9", data=str(folder))
    method = "batches of 128 cut from memory, with their graphs; nothing is read per epoch"
    return _measured(dataset, 128, 0.0, method)


def _text_cost(spec: WorkloadSpec, folder: Path) -> InputCost:
    from wattlaw_papers.workloads.language.masking import tokens_type

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
        f"synthetic text, masked in batches of 64; stored: {tokens} tokens of {width} bytes, as "
        "the cache of tokenised WikiText-103 has them",
    )


def _weather_cost(spec: WorkloadSpec, folder: Path) -> InputCost:
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
        f"a synthetic HDF5 file, read and standardised; stored: {states} time steps of "
        f"{' x '.join(map(str, shape))} float32 as ERA5 has them (each is read for "
        f"{states} samples)",
    )


_COST_BY_PACKAGE: dict[str, Callable[[WorkloadSpec, Path], InputCost]] = {
    "wattlaw_papers.workloads.vision": _image_cost,
    "wattlaw_papers.workloads.molecules": _molecule_cost,
    "wattlaw_papers.workloads.language": _text_cost,
    "wattlaw_papers.workloads.weather": _weather_cost,
}
#: Options of synthetic samples, which are invalid with files.
_SYNTHETIC_ONLY = ("train_samples", "evaluation_samples")


def _of_files(spec: WorkloadSpec, **options: str) -> Dataset:
    kept: dict[str, Any] = {
        name: value for name, value in spec.options.items() if name not in _SYNTHETIC_ONLY
    }
    files = WorkloadSpec(name=spec.name, options=kept | options)
    return catalogue.build(files).training_data()


def _measured(
    dataset: Dataset, batch: int, stored_bytes_per_sample: float, method: str
) -> InputCost:
    """Return the cost of a sample, with the CPU time of the quickest of some passes.

    The first pass is a warm-up; slower passes had less of a shared machine.
    """
    samples = min(len(dataset), _MAX_SAMPLES)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    times_s = []
    try:
        for _ in range(_PASSES + 1):
            start_s = time.process_time()
            for begin in range(0, samples, batch):
                indices = np.arange(begin, min(begin + batch, samples))
                dataset.batch(indices, indices.astype(np.uint64))
            times_s.append(time.process_time() - start_s)
    finally:
        torch.set_num_threads(threads)
    cpu_s = min(times_s[1:]) / samples
    return InputCost(stored_bytes_per_sample, cpu_s, dataset.reads_files, method)


def tensor_bytes(data: Any) -> float:
    """Return the bytes of the tensors of a batch."""
    leaves = pytree.tree_leaves(data)
    return float(sum(leaf.nbytes for leaf in leaves if isinstance(leaf, torch.Tensor)))
