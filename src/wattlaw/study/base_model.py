"""The base class, the common field types and the errors of a study file's models."""

from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
MAX_COUNT = 10_000_000
Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Positive = Annotated[float, Field(gt=0)]
#: What the training loop of wattlaw computes in, and the simulator.
OwnPrecision = Literal["fp32", "tf32", "bf16", "fp16"]
Precision = Literal[OwnPrecision, "fp8"]
#: The workload power profiles of NVIDIA GPUs, in the order of NVML's ids (NVML_POWER_PROFILE_*).
PowerProfile = Literal[
    "max-p", "max-q", "compute", "memory-bound", "network", "balanced", "llm-inference",
    "llm-training", "rbm", "dcpcie", "hmma-sparse", "hmma-dense", "sync-balanced", "hpc", "mig",
    "max-q-1", "network-bound", "high-throughput-inference", "medium-throughput-inference",
    "low-latency-inference", "training", "inference", "max-q-2", "max-q-3",
    "low-priority-background",
]  # fmt: skip
#: Which states the copies of a model share: zero1 those of the optimizer, zero2 gradients, too, and
#: zero3 parameters, too. fsdp is zero3 as torch does it, hsdp does it among the GPUs of a node.
Sharding = Literal["none", "zero1", "zero2", "zero3", "fsdp", "hsdp"]
Checkpointing = Literal["none", "selective", "full"]
SHARDINGS: tuple[str, ...] = get_args(Sharding)
#: Other names of precisions in tables and logs; a mixed one is that of its matrix products.
PRECISION_ALIASES = {
    "amp_bf16": "bf16", "amp_fp16": "fp16", "amp_fp8": "fp8", "bfloat16": "bf16",
    "float16": "fp16", "float32": "fp32", "float8": "fp8",
}  # fmt: skip
#: Other names of shardings there: no sharding, and those of PyTorch's FSDP.
SHARDING_ALIASES = {
    "zero0": "none", "ddp": "none", "no_shard": "none", "full_shard": "fsdp", "fsdp2": "fsdp",
    "shard_grad_op": "zero2", "hybrid_shard": "hsdp",
}  # fmt: skip
CHECKPOINTINGS: tuple[str, ...] = get_args(Checkpointing)
POWER_PROFILES: tuple[str, ...] = get_args(PowerProfile)
Word = Annotated[str, StringConstraints(max_length=10_000, pattern=r"^[^\x00]*$")]


class Model(BaseModel):
    """Frozen and strict: a text is not converted to a number, and an unknown key is an error."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True
    )


def field(default: Any, allowed: str, **bounds: Any) -> Any:
    """Return a field with a default; ``allowed`` is its description, which messages quote."""
    return Field(default=default, description=allowed, **bounds)


class LocatedError(ValueError):
    def __init__(self, message: str, *location: str | int) -> None:
        super().__init__(message)
        self.location = location
