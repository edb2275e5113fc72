"""The model of a run on the ranks of its layout: tensor parallel, sharded, recomputed.

torch's own ways: DistributedDataParallel where each rank has a whole model (``training.loop``),
``fully_shard`` and ``parallelize_module`` on a mesh of ranks elsewhere.
"""

from typing import Any, Protocol

import torch
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import parallelize_module

from wattlaw.running.training.ranks import Ranks
from wattlaw.study.setting import Setting
from wattlaw.workloads.workload import Workload


class Shareable(Protocol):
    """A model of equal ``layers`` with a flag ``recomputes``, whose parts reset their parameters.

    ``tensor_plans`` are those of ``parallelize_module``: of the model, and of a layer.
    """

    layers: nn.ModuleList

    def tensor_plans(self, *, sequence_parallel: bool) -> tuple[Any, Any]: ...


def is_shared(setting: Setting) -> bool:
    """Say whether a rank has less than the whole model."""
    return setting.tp > 1 or setting.sharding != "none"


def new_model(workload: Workload, setting: Setting, ranks: Ranks) -> nn.Module:
    """Return the model, on the device; with a seed, all layouts have the same one."""
    if is_shared(setting):
        with torch.device("meta"):
            model: Any = workload.model()
        _share(model, setting, ranks)
    else:
        model = workload.model().to(ranks.device)
    if setting.checkpointing == "full":
        for layer in model.layers:
            layer.recomputes = True
    return model  # type: ignore[no-any-return]


def _share(model: Any, setting: Setting, ranks: Ranks) -> None:
    """Make a model layer by layer, so that no rank ever has the whole of it."""
    copies, shape = ranks.copies, (ranks.copies, setting.tp)
    mesh = init_device_mesh(ranks.device.type, shape, mesh_dim_names=("dp", "tp"))
    of_model, of_layer = model.tensor_plans(sequence_parallel=setting.sequence_parallel)

    def share(module: nn.Module, plan: Any) -> None:
        if setting.tp > 1:
            parallelize_module(module, mesh["tp"], plan)
        if copies == 1:
            return
        if setting.sharding == "none":
            replicate(module, mesh=mesh["dp"])
        else:
            keeps = setting.sharding == "zero2"  # the parameters until the backward pass
            fully_shard(module, mesh=mesh["dp"], reshard_after_forward=not keeps)

    for child in model.children():
        layers = child if child is model.layers else None
        for module in layers or [child]:
            module.to_empty(device=ranks.device)
            for part in module.modules():
                if hasattr(part, "reset_parameters"):
                    part.reset_parameters()
            if layers is not None:
                share(module, of_layer)
    share(model, of_model)
