"""Counts the floating-point operations that training on one sample takes."""

import copy
import math
import sys
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from wattlaw.training.ranks import to_device
from wattlaw.workloads.workload import Dataset, Workload

#: Two are enough where all samples have one shape; more make a mean where they differ in size.
_ALIKE, _DIFFERENT = 2, 32
_aten = torch.ops.aten


def flops_per_sample(workload: Workload, model: nn.Module, dataset: Dataset) -> float | None:
    """Return the operations of one forward and backward pass, per sample; None if none can tell.

    Counted by torch's FLOP counter, which knows matrix products, convolutions and attention (a
    multiplication and an addition are two operations), with Fourier transforms added as
    (5/2) n log2 n per real and 5 n log2 n per complex transform of n points, the count of the
    radix-2 algorithm (Cooley and Tukey 1965). Pointwise work is not counted.

    The model is copied to the ``meta`` device, which computes shapes and no numbers; where that
    cannot be, as with nets whose shapes depend on the data, to the CPU. Where samples differ in
    size, as molecules do, the mean is that of the first 32.

    Parameters
    ----------
    workload, model
        What is trained; the model itself is left as it is.
    dataset
        What it is trained on.
    """
    few, many = min(_ALIKE, len(dataset)), min(_DIFFERENT, len(dataset))
    on_meta = few if is_stacked(first_batch(dataset, few), few) else many
    for device, samples in ((torch.device("meta"), on_meta), (torch.device("cpu"), many)):
        data = first_batch(dataset, samples)
        counter = FlopCounterMode(display=False, custom_mapping=TRANSFORMS)
        counted = copy.deepcopy(model).to(device).train()
        try:
            with counter:
                workload.loss(counted, to_device(data, device)).backward()  # type: ignore[no-untyped-call]
        except Exception as error:  # a model may work on its own device only
            print(f"operations cannot be counted on {device}: {error!r:.300}", file=sys.stderr)
            continue
        return counter.get_total_flops() / samples
    return None


def first_batch(dataset: Dataset, samples: int, *, times: int = 1) -> Any:
    """Return the first samples of a dataset as a batch, each of them so many times."""
    numbers = np.tile(np.arange(samples), times)
    return dataset.batch(numbers, numbers.astype(np.uint64))


def is_stacked(data: Any, samples: int) -> bool:
    """Say whether every tensor of a batch has one row per sample: then all are of one size."""
    if isinstance(data, dict):
        data = tuple(data.values())
    if isinstance(data, tuple | list):
        return all(is_stacked(part, samples) for part in data)
    return not isinstance(data, torch.Tensor) or data.shape[:1] == (samples,)


def _transform(per_point: float, *, by_output: bool) -> Any:
    def count(shape: Any, dims: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
        sizes: list[int] = list(out_shape if by_output else shape)
        points = math.prod(sizes[dim] for dim in dims)
        operations = per_point * math.prod(sizes) * math.log2(max(points, 1))
        return round(operations)

    return count


TRANSFORMS = {
    _aten._fft_r2c: _transform(2.5, by_output=False),
    _aten._fft_c2r: _transform(2.5, by_output=True),
    _aten._fft_c2c: _transform(5.0, by_output=False),
}
