"""The cost of input: bytes in storage and seconds of a core per sample.

A workload that trains on synthetic samples by default may offer files like those of its real data
(``Entry.real_input``): their cost is measured.
"""

import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch.utils import _pytree as pytree

from wattlaw.running.training.flops import first_batch
from wattlaw.study.model import WorkloadSpec
from wattlaw.workloads import catalogue
from wattlaw.workloads.workload import Dataset, RealInput, Workload

#: Options of synthetic samples, which are invalid with files.
_SYNTHETIC_ONLY = ("train_samples", "evaluation_samples")
_PASSES, _MAX_SAMPLES = 5, 512  # how often samples are read, and how many of them


class InputCost(NamedTuple):
    stored_bytes_per_sample: float
    cpu_s_per_sample: float
    reads_files: bool  # of the dataset: whether loader processes make its samples
    method: str


def measure_input(spec: WorkloadSpec, workload: Workload, dataset: Dataset) -> InputCost:
    """Return the cost of a sample of a workload's real data, measured on one core.

    A workload with synthetic samples is measured with the files that it offers. Other workloads are
    measured with their own data; stored bytes are a sample's share of the files in the option
    ``data``. Files are read repeatedly and so from memory, without the time of the storage.
    """
    real_input = catalogue.entry(spec.name).real_input
    if real_input is not None and "data" not in spec.options:
        module, _, function = real_input.partition(":")
        with tempfile.TemporaryDirectory(prefix="wattlaw-") as folder:
            write: Callable[..., RealInput] = getattr(import_module(module), function)
            made = write(catalogue.validated(spec), Path(folder) / "data")
            kept = {k: v for k, v in spec.options.items() if k not in _SYNTHETIC_ONLY}
            real = WorkloadSpec(name=spec.name, options={**kept, **made.options})
            read = catalogue.build(real).training_data()
            return _measured(read, made.batch, made.stored_bytes_per_sample, made.method)
    data = spec.options.get("data")
    if isinstance(data, str) and Path(data).is_dir():
        files = [path for path in Path(data).rglob("*") if path.is_file()]
        samples = len(dataset) + len(workload.evaluation_data())
        share = sum(path.stat().st_size for path in files) / samples
        return _measured(dataset, 64, share, f"{len(files)} files of {samples} samples")
    if not dataset.reads_files:
        return _measured(dataset, 64, 0.0, "samples in memory; nothing is read per epoch")
    method = "read unchanged; assumed to be stored in as many bytes as its tensors"
    tensors = [each for each in pytree.tree_leaves(first_batch(dataset, 1))
               if isinstance(each, torch.Tensor)]  # fmt: skip
    return _measured(dataset, 64, float(sum(each.nbytes for each in tensors)), method)


def _measured(
    dataset: Dataset, batch: int, stored_bytes_per_sample: float, method: str
) -> InputCost:
    """Return the cost of a sample by the quickest of some passes after a warm-up."""
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
