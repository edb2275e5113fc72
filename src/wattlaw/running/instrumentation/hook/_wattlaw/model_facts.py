"""What the classes and parameters in use show of the model, its precision and its parallelism."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

_PRECISIONS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "float64": "fp64"}
#: What the classes in use have shown; it survives a fork.
_seen: set[str] = set()
_autocast: dict[str, str] = {}


def process_group() -> dict[str, Any]:
    distributed = sys.modules["torch"].distributed
    if distributed.is_available() and distributed.is_initialized():
        rank, backend = distributed.get_rank(), distributed.get_backend()
        return {"rank": rank, "backend": backend, "world_size": distributed.get_world_size()}
    horovod = sys.modules.get("horovod.torch")
    if horovod is not None and horovod.is_initialized():
        _seen.add("ddp")
        return {"rank": horovod.rank(), "backend": "horovod", "world_size": horovod.size()}
    return {"world_size": None}


def devices_of(optimizer: Any) -> list[Any]:
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    return list(dict.fromkeys(parameter.device for parameter in parameters))


def parameters_of(optimizers: Any, world_size: int) -> dict[str, Any]:
    parameters: dict[int, Any] = {}
    for own in optimizers:
        optimizer = own.reference()
        for group in optimizer.param_groups if optimizer is not None else ():
            parameters.update((id(p), p) for p in group["params"] if p.requires_grad)
    count_by_dtype: dict[str, int] = {}
    count = gradient_bytes = 0
    devices, tensors = set(), [*parameters.values()]
    distributed = [p for p in tensors if type(p).__name__ == "DTensor"]
    for parameter in tensors:
        count += parameter.numel()
        gradient_bytes += parameter.numel() * parameter.element_size()
        dtype = str(parameter.dtype).rpartition(".")[2]
        count_by_dtype[dtype] = count_by_dtype.get(dtype, 0) + parameter.numel()
        devices.add(str(parameter.device))
    if any(sum(not q.is_replicate() for q in p.placements) > 1 for p in distributed) or (
        distributed and "fsdp" not in _seen
    ):
        _seen.add("tensor")
    is_sharded = bool(_seen & {"fsdp", "deepspeed"})
    dtype = max(count_by_dtype, key=lambda name: count_by_dtype[name], default="")
    device = sorted(devices)[0].partition(":")[0] if devices else None
    precision = _PRECISIONS.get(_autocast.get("dtype", ""))
    if precision is None and not is_sharded:  # these cast the parameters themselves
        precision = _PRECISIONS.get(dtype)
        matmul = sys.modules["torch"].backends.cuda.matmul
        if precision == "fp32" and device == "cuda" and matmul.allow_tf32:
            precision = "tf32"
    order = ("pipeline", "tensor", "deepspeed", "fsdp", "ddp")
    parallelism = next((kind for kind in order if kind in _seen), None)
    if parallelism is None and world_size == 1 and len(devices) < 2 and "other" not in _seen:
        parallelism = "none"
    is_known = not is_sharded or len(distributed) == len(tensors)
    return {
        "parameters": count if is_known else None,
        "gradient_bytes": gradient_bytes if is_known else None,
        "precision": precision,
        "parallelism": parallelism,
    }


def observe(owner: Any, name: str, recorder: Any, see: Callable[[Any], bool]) -> None:
    """Show a method's objects to ``see`` until it returns True; then the method is as before."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def method(self: Any, *arguments: Any, **named: Any) -> Any:
        try:
            if see(self) and owner.__dict__.get(name) is method:
                setattr(owner, name, original)
        except Exception as error:
            recorder.fail(f"{owner.__name__}.{name}", error)
        return original(self, *arguments, **named)

    setattr(owner, name, method)


def _sees(kind: str, name: str, *waits: tuple[str, str]) -> Callable[[Any, Any], None]:
    def see_module(module: Any, recorder: Any) -> None:
        def see(_: Any) -> bool:
            _seen.add(kind)
            recorder.waits.watch_calls(module, waits)
            return True

        observe(getattr(module, name), "__init__", recorder, see)

    return see_module


def see_ddp(module: Any, recorder: Any) -> None:
    ddp = module.DistributedDataParallel
    original = ddp.__init__

    @functools.wraps(original)
    def __init__(self: Any, *arguments: Any, **named: Any) -> None:  # noqa: N807
        original(self, *arguments, **named)
        _seen.add("ddp")
        recorder.waits.watch(self)

    ddp.__init__ = __init__


def see_autocast(module: Any, recorder: Any) -> None:
    def see(autocast: Any) -> bool:
        if autocast._enabled:
            _autocast["dtype"] = str(autocast.fast_dtype).rpartition(".")[2]
        return bool(autocast._enabled)

    observe(module.autocast, "__enter__", recorder, see)


see_data_parallel = _sees("other", "DataParallel")
#: With the functions in which FSDP waits, of modules or classes; the last one ends a backward pass.
see_fsdp = _sees(
    "fsdp",
    "FullyShardedDataParallel",
    ("torch.distributed.fsdp.fully_sharded_data_parallel", "_pre_forward_unshard"),
    ("torch.distributed.fsdp._runtime_utils", "_pre_backward_hook"),
    ("torch.distributed.fsdp._runtime_utils", "_post_backward_hook"),
    ("torch.distributed.fsdp._runtime_utils", "_post_backward_final_callback"),
)
see_fully_shard = _sees(
    "fsdp",
    "FSDPState",
    ("FSDPParamGroup", "unshard"),
    ("FSDPParamGroup", "wait_for_unshard"),
    ("FSDPParamGroup", "post_backward"),
    ("FSDPState", "_root_post_backward_final_callback"),
)
see_pipeline = _sees("pipeline", "_PipelineStageBase")
see_deepspeed = _sees("deepspeed", "DeepSpeedEngine")
