"""The number of floating-point operations of training on one sample."""

import copy
import math
import sys
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from wattlaw.running.training.ranks import to_device
from wattlaw.workloads.workload import Dataset, Workload

#: Samples that are counted: two if all samples have one shape, else 32 for a mean.
_UNIFORM, _VARYING = 2, 32
_aten = torch.ops.aten


def flops_per_sample(workload: Workload, model: nn.Module, dataset: Dataset) -> float | None:
    """Return the operations of one forward and backward pass per sample; None if not countable.

    torch's FLOP counter counts matrix products, convolutions and attention, not pointwise
    operations; a multiplication and an addition are two. Fourier transforms of n points add (5/2)
    n log2 n if real and 5 n log2 n if complex, as the radix-2 algorithm (Cooley and Tukey 1965).

    Shapes come from a copy of the model on the ``meta`` device or, if they depend on the data, on
    the CPU. If samples differ in size, as molecules do, the result is the mean of the first 32.
    """
    on_meta, many = representative_samples(dataset), min(_VARYING, len(dataset))
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


def has_uniform_samples(dataset: Dataset) -> bool:
    few = min(_UNIFORM, len(dataset))
    return is_stacked(first_batch(dataset, few), few)


def representative_samples(dataset: Dataset) -> int:
    return min(_UNIFORM if has_uniform_samples(dataset) else _VARYING, len(dataset))


def first_batch(dataset: Dataset, samples: int, *, times: int = 1) -> Any:
    numbers = np.tile(np.arange(samples), times)
    return dataset.batch(numbers, numbers.astype(np.uint64))


def is_stacked(data: Any, samples: int) -> bool:
    """Say whether every tensor of a batch has one row per sample, so that samples have one size."""
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
