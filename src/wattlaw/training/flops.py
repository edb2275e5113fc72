"""Counts the floating-point operations that training on one sample takes."""

import copy
import math
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from wattlaw.training.ranks import moved
from wattlaw.workloads.workload import Dataset, Workload

#: Two are enough where all samples have one shape; more make a mean where they differ in size.
_ALIKE, _DIFFERENT = 2, 32
_aten = torch.ops.aten


def flops_per_sample(workload: Workload, model: nn.Module, dataset: Dataset) -> float:
    """Return the operations of one forward and backward pass, per sample.

    Counted by torch's FLOP counter, which knows matrix products, convolutions and attention (a
    multiplication and an addition are two operations), with Fourier transforms added as
    (5/2) n log2 n per real and 5 n log2 n per complex transform of n points, the count of the
    radix-2 algorithm (Cooley and Tukey 1965). Pointwise work is not counted.

    The model is copied to the ``meta`` device, which computes shapes and no numbers; where that
    cannot be, as with graphs whose shapes depend on the data, to the CPU, and the mean is that of
    the first 32 samples.

    Parameters
    ----------
    workload, model
        What is trained; the model itself is left as it is.
    dataset
        What it is trained on.
    """
    for device, most in ((torch.device("meta"), _ALIKE), (torch.device("cpu"), _DIFFERENT)):
        samples = min(most, len(dataset))
        data = dataset.batch(np.arange(samples), np.arange(samples, dtype=np.uint64))
        counter = FlopCounterMode(display=False, custom_mapping=_TRANSFORMS)
        counted = copy.deepcopy(model).to(device).train()
        try:
            with counter:
                workload.loss(counted, moved(data, device)).backward()  # type: ignore[no-untyped-call]
        except (RuntimeError, NotImplementedError, ValueError):
            if device.type == "cpu":
                raise
            continue
        return counter.get_total_flops() / samples
    raise AssertionError("the CPU can count or raise")


def _transform(per_point: float, *, by_output: bool) -> Any:
    def count(shape: Any, dims: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
        sizes: list[int] = list(out_shape if by_output else shape)
        points = math.prod(sizes[dim] for dim in dims)
        operations = per_point * math.prod(sizes) * math.log2(max(points, 1))
        return round(operations)

    return count


_TRANSFORMS = {
    _aten._fft_r2c: _transform(2.5, by_output=False),
    _aten._fft_c2r: _transform(2.5, by_output=True),
    _aten._fft_c2c: _transform(5.0, by_output=False),
}
