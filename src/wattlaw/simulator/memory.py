"""The memory that training takes on one GPU, from the profile of its workload."""

from wattlaw.simulator.kernels import ACTIVATION_SIZE
from wattlaw.simulator.profile import WorkloadProfile
from wattlaw.study.base import Precision

#: Bytes of a parameter, its gradient and two moments of the optimizer, all in float32.
_STATE_BYTES = 16


def rank_memory_gb(profile: WorkloadProfile, samples: int, precision: Precision) -> float:
    """Return roughly the memory of a rank in 10^9 bytes: its state, and its activations.

    ``samples`` are those of a ``micro_batch``. Left out: workspaces of convolutions, fragments of
    the allocator, and the CUDA context.
    """
    activations = samples * profile.activation_bytes_per_sample * ACTIVATION_SIZE[precision]
    return (_STATE_BYTES * profile.parameters + activations) / 1e9


def micro_batch(local_batch: int, gradient_accumulation: int) -> int:
    """Return the samples of the largest part in which a rank computes its local batch."""
    return -(-local_batch // min(gradient_accumulation, local_batch))
