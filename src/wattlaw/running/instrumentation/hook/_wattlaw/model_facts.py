"""What the classes and parameters in use show of the model, its precision and its parallelism."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

from . import layouts

_PRECISIONS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "float64": "fp64"}
_autocast: dict[str, str] = {}
#: Modules, by the names of their packages.
_VERSIONED = {
    "torch": "torch", "transformers": "transformers", "accelerate": "accelerate",
    "deepspeed": "deepspeed", "megatron.core": "megatron-core", "lightning": "lightning",
    "torchtitan": "torchtitan", "nanotron": "nanotron", "flash_attn": "flash-attn",
    "transformer_engine": "transformer-engine",
}  # fmt: skip
#: Configurations of models of transformers, each once.
_configs: list[Any] = []


def process_group() -> dict[str, Any]:
    distributed = sys.modules["torch"].distributed
    if distributed.is_available() and distributed.is_initialized():
        rank, backend = distributed.get_rank(), distributed.get_backend()
        return {"rank": rank, "backend": backend, "world_size": distributed.get_world_size()}
    return {"world_size": None}


def devices_of(optimizer: Any) -> list[Any]:
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    return list(dict.fromkeys(parameter.device for parameter in parameters))


def trained_parameters(optimizers: Any) -> list[Any]:
    parameters: dict[int, Any] = {}
    for own in optimizers:
        optimizer = own.reference()
        for group in optimizer.param_groups if optimizer is not None else ():
            parameters.update((id(p), p) for p in group["params"] if p.requires_grad)
    return [*parameters.values()]


def facts_of(tensors: list[Any], world_size: int, layout: dict[str, Any]) -> dict[str, Any]:
    count_by_dtype: dict[str, int] = {}
    count = gradient_bytes = 0
    devices = set()
    distributed = [p for p in tensors if type(p).__name__ == "DTensor"]
    for parameter in tensors:
        count += parameter.numel()
        gradient_bytes += parameter.numel() * parameter.element_size()
        dtype = str(parameter.dtype).rpartition(".")[2]
        count_by_dtype[dtype] = count_by_dtype.get(dtype, 0) + parameter.numel()
        devices.add(str(parameter.device))
    kinds, sizes = layouts.kinds, {"tensor": layout.get("tp"), "pipeline": layout.get("pp")}
    kinds.update(kind for kind, size in sizes.items() if (size or 1) > 1)
    is_sharded = bool(kinds & {"fsdp", "deepspeed"})
    dtype = max(count_by_dtype, key=lambda name: count_by_dtype[name], default="")
    device = sorted(devices)[0].partition(":")[0] if devices else None
    precision = _PRECISIONS.get(_autocast.get("dtype", ""))
    if precision is None and not is_sharded:  # these cast the parameters themselves
        precision = _PRECISIONS.get(dtype)
        matmul = sys.modules["torch"].backends.cuda.matmul
        if precision == "fp32" and device == "cuda" and matmul.allow_tf32:
            precision = "tf32"
    order = ("pipeline", "tensor", "deepspeed", "fsdp", "ddp")
    parallelism = next((kind for kind in order if kind in kinds), None)
    if parallelism is None and (layout.get("dp") or 1) > 1:  # by a framework's own classes
        parallelism = "ddp"
    if parallelism is None and world_size == 1 and len(devices) < 2 and "other" not in kinds:
        parallelism = "none"
    # Other tensors than torch's distributed ones are a rank's part, and a stage's are its own.
    is_known = not is_sharded or len(distributed) == len(tensors)
    is_known &= "pipeline" not in kinds and ("tensor" not in kinds or bool(distributed))
    return {
        "threads_per_worker": sys.modules["torch"].get_num_threads(),
        "parameters": count if is_known else None,
        "gradient_bytes": gradient_bytes if is_known else None,
        "precision": precision,
        "parallelism": parallelism,
        **(layout if parallelism is not None else {}),
    }


def software() -> dict[str, str]:
    """Return the versions of what the script has imported, and of torch's libraries."""
    torch = sys.modules["torch"]
    known = {"cuda": torch.version.cuda, "rocm": torch.version.hip}
    if torch.version.cuda and torch.cuda.is_initialized():
        known["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    for module, name in _VERSIONED.items():
        known[name] = getattr(sys.modules.get(module), "__version__", None)
    return {name: str(version) for name, version in known.items() if version}


def peak_memory(gpus: list[Any]) -> dict[str, int]:
    """Return what was allocated on a GPU, the memory of a GPU, and the resident memory of this
    process on Linux."""
    found = {}
    if gpus:
        kinds = [getattr(sys.modules["torch"], gpu.type) for gpu in gpus]
        pairs = [*zip(kinds, gpus, strict=True)]
        found["peak_memory_bytes"] = max(kind.max_memory_allocated(gpu) for kind, gpu in pairs)
        sizes = [kind.get_device_properties(gpu).total_memory for kind, gpu in pairs]
        found["gpu_memory_bytes"] = min(sizes)
    try:
        with open("/proc/self/status", "rb") as file:
            lines = [line.split() for line in file if line.startswith(b"VmHWM:")]
    except OSError:
        return found
    return {**found, "peak_resident_bytes": int(lines[0][1]) * 1024} if lines else found


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


def _after_init(owner: Any, recorder: Any, see: Callable[[Any], None]) -> None:
    """Show each new object of a class to ``see``, until that fails."""
    original = owner.__init__

    @functools.wraps(original)
    def __init__(self: Any, *arguments: Any, **named: Any) -> None:  # noqa: N807
        original(self, *arguments, **named)
        if owner.__name__ not in recorder.off:
            try:
                see(self)
            except Exception as error:
                recorder.fail(owner.__name__, error)

    owner.__init__ = __init__


def see_ddp(module: Any, recorder: Any) -> None:
    def see(ddp: Any) -> None:
        recorder.waits.watch(ddp)
        layouts.add_data_parallel(ddp.process_group.size(), ddp.process_group.rank())

    _after_init(module.DistributedDataParallel, recorder, see)


def see_autocast(module: Any, recorder: Any) -> None:
    def see(autocast: Any) -> bool:
        if autocast._enabled:
            _autocast["dtype"] = str(autocast.fast_dtype).rpartition(".")[2]
        return bool(autocast._enabled)

    observe(module.autocast, "__enter__", recorder, see)


def _made(
    see: Callable[[Any], None], *names: str, waits: Sequence[tuple[str, str]] = ()
) -> Callable[[Any, Any], None]:
    """Show each new object of a class, the first of ``names`` that its module has, to ``see``.

    From the first one on, ``waits`` are timed: functions, and the modules or classes that have
    them, of which the last one ends a backward pass.
    """

    def see_module(module: Any, recorder: Any) -> None:
        owner = next(getattr(module, name) for name in names if hasattr(module, name))

        def see_new(made: Any) -> None:
            if waits:
                recorder.waits.watch_calls(module, waits)
            see(made)

        _after_init(owner, recorder, see_new)

    return see_module


def _see_model(model: Any) -> None:
    if all(config is not model.config for config in _configs):
        _configs.append(model.config)


see_data_parallel = _made(lambda _: layouts.kinds.add("other"), "DataParallel")
see_meshes = _made(layouts.add_mesh, "DeviceMesh")
see_stages = _made(layouts.add_stage, "_PipelineStageBase")
see_schedules = _made(layouts.add_schedule, "_PipelineSchedule")
see_zero1 = _made(layouts.add_zero1, "ZeroRedundancyOptimizer", "DistributedOptimizer")
see_transformers = _made(_see_model, "PreTrainedModel")
see_fsdp = _made(
    layouts.add_fsdp1,
    "FullyShardedDataParallel",
    waits=(
        ("torch.distributed.fsdp.fully_sharded_data_parallel", "_pre_forward_unshard"),
        ("torch.distributed.fsdp._runtime_utils", "_pre_backward_hook"),
        ("torch.distributed.fsdp._runtime_utils", "_post_backward_hook"),
        ("torch.distributed.fsdp._runtime_utils", "_post_backward_final_callback"),
    ),
)
see_fully_shard = _made(
    layouts.add_fsdp2,
    "FSDPParamGroup",
    waits=(
        ("FSDPParamGroup", "unshard"),
        ("FSDPParamGroup", "wait_for_unshard"),
        ("FSDPParamGroup", "post_backward"),
        ("FSDPState", "_root_post_backward_final_callback"),
    ),
)


def see_checkpointing(module: Any, recorder: Any) -> None:
    def see(kind: str) -> Callable[[Any], bool]:
        def see_call(_: Any) -> bool:
            layouts.add_checkpointing(kind)
            return True

        return see_call

    for name, kind in (("_CheckpointFrame", "full"), ("_CachingTorchDispatchMode", "selective")):
        if hasattr(module, name):
            observe(getattr(module, name), "__init__", recorder, see(kind))
    forward = module.CheckpointFunction.forward  # of the reentrant way

    @functools.wraps(forward)
    def call(*arguments: Any, **named: Any) -> Any:
        layouts.add_checkpointing("full")
        module.CheckpointFunction.forward = staticmethod(forward)
        return forward(*arguments, **named)

    module.CheckpointFunction.forward = staticmethod(call)


def config() -> dict[str, Any] | None:
    """Return what the only model of transformers says of its sizes; of several, none."""
    if len(_configs) != 1:
        return None
    given, others = _configs[0].to_dict(), ("model_type", "mlp_only_layers")
    return {key: value for key, value in given.items() if isinstance(value, int) or key in others}


def see_deepspeed(module: Any, recorder: Any) -> None:
    engine = module.DeepSpeedEngine
    _after_init(engine, recorder, layouts.add_deepspeed)
    original = engine._take_model_step

    @functools.wraps(original)
    def _take_model_step(self: Any, *arguments: Any, **named: Any) -> Any:
        with recorder.one_step():  # ZeRO's optimizers step for each group of parameters
            return original(self, *arguments, **named)

    engine._take_model_step = _take_model_step
