"""The work of a model on any hardware, counted once from the workload and stored as data."""

from functools import cached_property
from itertools import pairwise
from typing import Annotated, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, JsonValue, model_validator

from wattlaw.study.base_model import Model, Precision

#: A bound on amounts of a sample or a step; it keeps sums finite.
_MAX_AMOUNT = 10**18
Amount = Annotated[float, Field(ge=0, le=_MAX_AMOUNT)]
Share = Annotated[float, Field(ge=0, le=1)]
Phase = Literal["forward", "backward", "optimizer"]
#: Bytes of a parameter, its gradient and two moments of the optimizer, all in float32.
_STATE_BYTES = 16
#: Activations over those of float32. In mixed precision some stay in float32: 0.51 to 0.79 of the
#: bytes of six workloads, reduced, were counted on a processor with bfloat16.
_ACTIVATIONS: dict[Precision, float] = {"fp32": 1.0, "tf32": 1.0, "bf16": 0.65, "fp16": 0.65}


class Kernels(Model):
    """Equal kernels of one step: their number, and the work of each.

    Bytes are those of float32, read and written once (no cache); operations are those of matrix
    products, convolutions and attention, a multiplication and an addition being two.
    """

    phase: Phase
    count: Annotated[float, Field(gt=0, le=10**9)]
    flops_per_sample: Amount
    bytes_per_sample: Amount
    bytes_fixed: Amount  # whatever the batch, such as weights


class WorkloadProfile(Model):
    """The work of one workload, with the options that determine the size of its model.

    ``flops_per_sample`` (forward and backward pass, as counted by ``training.flops``) also
    identifies the profile: it is that of all options with the same operations.
    """

    workload: str
    options: dict[str, JsonValue] = Field(default_factory=dict)  # those that differ from defaults
    parameters: int = Field(ge=1, le=10**15)
    gradient_bytes: int = Field(ge=1, le=10**16)  # bytes that the ranks all-reduce in one step
    layers: int = Field(ge=1, le=10**6)  # modules that have parameters
    flops_per_sample: Annotated[float, Field(gt=0, le=_MAX_AMOUNT)]
    #: What the forward pass keeps for the backward pass, in float32.
    activation_bytes_per_sample: Amount
    #: Standard deviation over mean of the work of single samples; 0 where all are of one size.
    work_cv: Amount = 0.0
    stored_bytes_per_sample: Amount  # as the real data set is stored, read once per epoch
    input_cpu_s_per_sample: Amount  # of one core: read, decode, augment
    #: Whether loader processes prepare samples in parallel; otherwise the rank does between steps.
    reads_files: bool = True
    kernels: tuple[Kernels, ...] = Field(min_length=1)
    #: (share of the backward pass that is done, share of the gradients' bytes that is ready).
    gradients_ready: tuple[tuple[Share, Share], ...] = ((0.0, 0.0), (1.0, 1.0))
    counted: str  # how, where and with which versions the work was counted

    @cached_property
    def tables(self) -> dict[str, npt.NDArray[np.float64]]:
        """Return the kernels of each phase: rows of count, operations and bytes per sample, bytes.

        Shape (kinds, 4).
        """
        rows: dict[str, list[tuple[float, ...]]] = {"forward": [], "backward": [], "optimizer": []}
        for k in self.kernels:
            rows[k.phase].append((k.count, k.flops_per_sample, k.bytes_per_sample, k.bytes_fixed))
        return {phase: np.array(table).reshape(-1, 4) for phase, table in rows.items()}

    @model_validator(mode="after")
    def _gradients_become_ready(self) -> Self:
        points = self.gradients_ready
        ends = len(points) >= 2 and points[0] == (0.0, 0.0) and points[-1] == (1.0, 1.0)
        if not ends or any(a[0] > b[0] or a[1] > b[1] for a, b in pairwise(points)):
            raise ValueError("gradients_ready must ascend from (0, 0) to (1, 1)")
        return self


def rank_memory_gb(profile: WorkloadProfile, samples: int, precision: Precision) -> float:
    """Roughly, in 10^9 bytes: the state and the activations of a ``micro_batch``.

    Left out: workspaces of convolutions, fragments of the allocator, and the CUDA context.
    """
    activations = samples * profile.activation_bytes_per_sample * _ACTIVATIONS[precision]
    return (_STATE_BYTES * profile.parameters + activations) / 1e9


def micro_batch(local_batch: int, gradient_accumulation: int) -> int:
    """Return the samples of the largest part in which a rank computes its local batch."""
    return -(-local_batch // min(gradient_accumulation, local_batch))
