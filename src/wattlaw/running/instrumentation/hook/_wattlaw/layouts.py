"""How the ranks divide the training: what process groups, meshes and frameworks show of it.

A size that nothing shows is missing. Frameworks that state their sizes count more than the sizes of
torch's own classes, which follow from the ranks that share gradients and parameters.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable
from typing import Any

#: Environment variables of launchers, by what they say.
LAUNCHERS = {
    "rank": ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"),
    "env_world_size": ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"),
    "local_world_size": (
        "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS",
        "SLURM_STEP_TASKS_PER_NODE",
    ),
    "launched_rank": ("WATTLAW_LAUNCHED_RANK",),
}  # fmt: skip
#: Names of mesh dimensions, by what they divide: those of torch's and torchtitan's examples.
_DIMENSIONS = {
    "tp": ("tp", "tensor", "tensor_parallel"),
    "pp": ("pp", "pipe", "pipeline", "pipeline_parallel"),
    "cp": ("cp", "context", "context_parallel"),
    "ep": ("ep", "expert", "expert_parallel"),
}
_KINDS = {name: kind for kind, names in _DIMENSIONS.items() for name in names}
_MAX_MESHES = 256
#: FSDP's first version by its strategy, and DeepSpeed by its stage.
_STRATEGIES = {
    "FULL_SHARD": "fsdp", "SHARD_GRAD_OP": "zero2", "NO_SHARD": "none",
    "HYBRID_SHARD": "hsdp", "_HYBRID_SHARD_ZERO2": "hsdp",
}  # fmt: skip
_STAGES = ("none", "zero1", "zero2", "zero3")
#: Kinds of parallelism whose classes are in use; as what follows, it survives a fork.
kinds: set[str] = set()
#: What the classes in use have shown. ``data`` is how many ranks share
#: gradients, the number of this one among them, and the dimensions of their mesh.
_seen: dict[str, Any] = {}
#: Named meshes: for each dimension its kind, its size and the place of this rank.
_meshes: list[tuple[tuple[str | None, int, int], ...]] = []


def launched() -> dict[str, int | None]:
    return {what: first_number(names) for what, names in LAUNCHERS.items()}


def first_number(variables: Iterable[str]) -> int | None:
    """Return the number in the first variable of the environment that has one."""
    for name in variables:
        text = os.environ.get(name, "")
        if text.isdigit() and text.isascii() and len(text) < 8:
            return int(text)
    return None


def add_mesh(mesh: Any) -> None:
    names, place = mesh.mesh_dim_names, mesh.get_coordinate()
    if names and place is not None and len(_meshes) < _MAX_MESHES:
        sizes = [mesh.size(dimension) for dimension in range(len(names))]
        named = zip((_KINDS.get(name) for name in names), sizes, place)
        _meshes.append(tuple(named))


def add_data_parallel(ranks: int, rank: int) -> None:
    kinds.add("ddp")
    _seen.setdefault("sharding", "none")
    _seen.setdefault("data", (ranks, rank, 0))


def add_fsdp1(fsdp: Any) -> None:
    kinds.add("fsdp")
    ranks, rank = fsdp.process_group.size(), fsdp.process_group.rank()
    between = getattr(fsdp, "_inter_node_pg", None)
    if between is not None:
        ranks, rank = ranks * between.size(), between.rank() * ranks + rank
    _seen["data"] = (ranks, rank, 0)
    _seen["sharding"] = _STRATEGIES.get(fsdp.sharding_strategy.name)


def add_fsdp2(group: Any) -> None:
    """Add a group of parameters; ``fsdp`` gathers them again for the backward pass."""
    kinds.add("fsdp")
    info = group.mesh_info
    copies, shards = (
        getattr(info, f"{what}_mesh_size", None) or 1 for what in ("replicate", "shard")
    )
    rank = getattr(info, "replicate_mesh_rank", 0) * shards + getattr(info, "shard_mesh_rank", 0)
    _seen["data"] = (copies * shards, rank, info.mesh.ndim)
    if shards == 1 and copies > 1:
        _seen["sharding"] = "none"
    elif copies > 1:
        _seen["sharding"] = "hsdp"
    elif group.post_forward_mesh_info is not None:
        _seen["sharding"] = "fsdp"
    elif _seen.get("sharding") != "fsdp":
        _seen["sharding"] = "zero2"


def add_stage(stage: Any) -> None:
    ranks = stage.group_size
    _seen["pp"], _seen["virtual_stages"] = ranks, stage.num_stages // ranks


def add_schedule(schedule: Any) -> None:
    _seen["pieces"] = schedule._n_microbatches


def add_zero1(_: Any) -> None:
    _seen["sharding"] = "zero1"


def add_checkpointing(kind: str) -> None:
    if _seen.get("checkpointing") != "selective":  # it calls what the full one calls, too
        _seen["checkpointing"] = kind


def add_deepspeed(engine: Any) -> None:
    kinds.add("deepspeed")
    world = sys.modules["torch"].distributed.get_world_size()
    grid = getattr(engine.module, "_grid", None)  # of a pipeline
    pp = grid.get_pipe_parallel_world_size() if grid is not None else 1
    tp, cp = engine.mp_world_size, getattr(engine, "sequence_parallel_size", 1)
    sizes = {
        "sharding": _STAGES[engine.zero_optimization_stage()],
        "micro_batch": engine.train_micro_batch_size_per_gpu(),
        "accumulation": engine.gradient_accumulation_steps(),
    }
    if world % (tp * pp * cp) == 0:
        dp, group = world // (tp * pp * cp), engine.data_parallel_group
        ep = None if getattr(engine, "has_moe_layers", False) else 1  # each layer has its own
        sizes.update({"tp": tp, "pp": pp, "cp": cp, "ep": ep, "dp": dp, "virtual_stages": 1})
        sizes["data_rank"] = group.rank() if group.size() == dp else None
    _seen["deepspeed"] = sizes


def layout(parameters: list[Any], world: int, rank: int) -> dict[str, Any]:
    """Return what is known of the layout; ``data_rank`` is the copy of the model of this rank."""
    known = {name: _seen.get(name) for name in ("checkpointing", "sharding", "pieces")}
    parallel_state = sys.modules.get("megatron.core.parallel_state")
    if parallel_state is not None and parallel_state.model_parallel_is_initialized():
        return {**known, **_of_megatron(parallel_state)}
    if "deepspeed" in _seen:
        return {**known, **_seen["deepspeed"]}
    distributed = [p for p in parameters if type(p).__name__ == "DTensor"]
    return {**known, **_of_torch(distributed, world, rank)}


def _of_megatron(state: Any) -> dict[str, Any]:
    sizes = {
        "tp": state.get_tensor_model_parallel_world_size(),
        "pp": state.get_pipeline_model_parallel_world_size(),
        "cp": state.get_context_parallel_world_size(),
        "ep": state.get_expert_model_parallel_world_size(),
        "dp": state.get_data_parallel_world_size(),
        "data_rank": state.get_data_parallel_rank(),
        "virtual_stages": state.get_virtual_pipeline_model_parallel_world_size() or 1,
        "sharding": _seen.get("sharding", "none"),
    }
    batches = sys.modules.get("megatron.core.num_microbatches_calculator")
    if getattr(batches, "_GLOBAL_NUM_MICROBATCHES_CALCULATOR", None) is not None:
        sizes["micro_batch"] = batches.get_micro_batch_size()  # type: ignore[union-attr]
        sizes["accumulation"] = batches.get_num_microbatches()  # type: ignore[union-attr]
    arguments = getattr(sys.modules.get("megatron.training.global_vars"), "_GLOBAL_ARGS", None)
    if arguments is not None:
        sizes["checkpointing"] = arguments.recompute_granularity or "none"
    return sizes


def _of_torch(parameters: list[Any], world: int, rank: int) -> dict[str, Any]:
    """The sizes have to agree with the number of ranks that share gradients; those that share a
    sequence share gradients, too."""
    ranks, data_rank, dimensions = _seen.get("data", (None, None, 0))
    sizes = {"tp": 1, "pp": 1, "cp": 1, "ep": 1}
    for kind, size, _ in (dimension for mesh in _meshes for dimension in mesh):
        if kind is not None:
            sizes[kind] = max(sizes[kind], size)
    sizes.update(_of_placements(parameters, dimensions))
    sizes["pp"] = _seen.get("pp", sizes["pp"])
    if ranks == world:  # a mesh that is named for more is not used for that
        sizes["tp"] = sizes["pp"] = 1
    divided = sizes["tp"] * sizes["pp"]
    model_ranks = divided * sizes["cp"]
    is_shown = ranks is not None or world == 1 or max(sizes.values()) > 1
    if not is_shown or world % model_ranks:
        return {}
    if ranks is not None and ranks * divided != world and ranks * model_ranks != world:
        return {}
    dp = world // model_ranks
    place = 0 if dp == 1 else rank if dp == world else _place(world)
    if place is None and ranks == dp:
        place = data_rank
    sizes.update({"dp": dp, "virtual_stages": _seen.get("virtual_stages", 1)})
    sharding = {"sharding": _seen.get("sharding", "none")} if dp == 1 else {}
    return {**sizes, **sharding, "data_rank": place}


def _of_placements(parameters: list[Any], data_dimensions: int) -> dict[str, int]:
    """By the dimensions of meshes along which parameters are divided; the first are FSDP's."""
    sizes: dict[str, int] = {}
    for parameter in parameters:
        mesh = parameter.device_mesh
        for number, placement in enumerate(parameter.placements):
            if number >= data_dimensions and not placement.is_replicate():
                names = mesh.mesh_dim_names
                kind = _KINDS.get(names[number], "tp") if names else "tp"
                sizes[kind] = max(sizes.get(kind, 1), mesh.size(number))
    return sizes


def _place(world: int) -> int | None:
    """Return the copy of the model of this rank, by a named mesh of all ranks."""
    for mesh in _meshes:
        if math.prod(size for _, size, _ in mesh) == world:
            place = 0
            for kind, size, own in mesh:
                if kind in (None, "ep"):
                    place = place * size + own
            return place
    return None
