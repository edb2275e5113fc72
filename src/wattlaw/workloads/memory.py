"""The memory that training takes on one GPU, from the profile of its workload."""

from wattlaw.study.base_model import Precision
from wattlaw.workloads.profile import WorkloadProfile

#: Bytes of a parameter, its gradient and two moments of the optimizer, all in float32.
_STATE_BYTES = 16
#: Activations over those of float32. In mixed precision some stay in float32: 0.51 to 0.79 of the
#: bytes of six workloads, reduced, were counted on a processor with bfloat16.
_ACTIVATIONS: dict[Precision, float] = {"fp32": 1.0, "tf32": 1.0, "bf16": 0.65, "fp16": 0.65}


def rank_memory_gb(profile: WorkloadProfile, samples: int, precision: Precision) -> float:
    """Return roughly the memory of a rank in 10^9 bytes: its state, and its activations.

    ``samples`` are those of a ``micro_batch``. Left out: workspaces of convolutions, fragments of
    the allocator, and the CUDA context.
    """
    activations = samples * profile.activation_bytes_per_sample * _ACTIVATIONS[precision]
    return (_STATE_BYTES * profile.parameters + activations) / 1e9


def micro_batch(local_batch: int, gradient_accumulation: int) -> int:
    """Return the samples of the largest part in which a rank computes its local batch."""
    return -(-local_batch // min(gradient_accumulation, local_batch))
