"""The layout that the hook reads from process groups, meshes and frameworks."""

import sys
from types import SimpleNamespace

import pytest
import torch
from test_instrumentation import processes, run

from wattlaw.running.instrumentation.hook._wattlaw import layouts
from wattlaw.running.instrumentation.hook._wattlaw.loaders import _tokens
from wattlaw.running.instrumentation.steady_state import summarise


@pytest.fixture(autouse=True)
def nothing_seen(monkeypatch):
    monkeypatch.setattr(layouts, "_seen", {})
    monkeypatch.setattr(layouts, "_meshes", [])


def mesh(rank: int, **sizes: int) -> SimpleNamespace:
    shape, place = [*sizes.values()], []
    for size in reversed(shape):
        rank, own = divmod(rank, size)
        place.insert(0, own)
    return SimpleNamespace(
        mesh_dim_names=tuple(sizes), get_coordinate=lambda: place, size=lambda number: shape[number]
    )


def sizes(rank: int = 0, world: int = 8) -> tuple[int | None, ...]:
    found = layouts.layout([], world, rank)
    return tuple(found.get(name) for name in ("tp", "pp", "cp", "dp", "data_rank"))


@pytest.mark.parametrize(
    ("meshes", "shared", "rank", "world", "expected"),
    [
        ([], None, 0, 8, (None,) * 5),  # nothing is shown
        ([], None, 0, 1, (1, 1, 1, 1, 0)),
        # by the names of a mesh, and a part of it
        ([mesh(13, pp=2, dp=2, cp=2, tp=2), mesh(1, tp=2)], None, 13, 16, (2, 2, 2, 2, 1)),
        # all share gradients, and no layer by the mesh that the script does not use
        ([mesh(3, dp=4, tp=2)], (8, 3), 3, 8, (1, 1, 1, 8, 3)),
        # the ranks of a sequence share gradients and are one copy
        ([mesh(5, dp=4, cp=2)], (8, 5), 5, 8, (1, 1, 2, 4, 2)),
        ([], (4, 0), 0, 8, (None,) * 5),  # and what do the others share?
    ],
)
def test_sizes_are_those_of_meshes_and_of_the_ranks_that_share_gradients(
    meshes, shared, rank, world, expected
):
    for one in meshes:
        layouts.add_mesh(one)
    if shared:
        layouts.add_data_parallel(*shared)
    assert sizes(rank, world) == expected


def test_a_pipeline_has_its_stages_and_micro_batches():
    layouts.add_data_parallel(2, 1)
    layouts.add_stage(SimpleNamespace(group_size=4, num_stages=8))
    layouts.add_schedule(SimpleNamespace(_n_microbatches=16))
    assert sizes(rank=6) == (1, 4, 1, 2, 1)
    found = layouts.layout([], 8, 6)
    assert (found["virtual_stages"], found["pieces"], found["sharding"]) == (2, 16, "none")


@pytest.mark.parametrize(
    ("copies", "shards", "is_gathered_again", "sharding"),
    [(1, 8, True, "fsdp"), (1, 8, False, "zero2"), (2, 4, True, "hsdp"), (8, 1, True, "none")],
)
def test_what_copies_share_with_fully_shard(copies, shards, is_gathered_again, sharding):
    info = SimpleNamespace(
        replicate_mesh_size=copies, shard_mesh_size=shards, replicate_mesh_rank=copies - 1,
        shard_mesh_rank=0, mesh=SimpleNamespace(ndim=2),
    )  # fmt: skip
    layouts.add_fsdp2(
        SimpleNamespace(mesh_info=info, post_forward_mesh_info=info if is_gathered_again else None)
    )
    assert layouts.layout([], 8, 0)["sharding"] == sharding
    assert sizes() == (1, 1, 1, 8, 0)


def test_megatrons_groups_are_read(monkeypatch):
    """A stand-in with the names of megatron.core's functions, which needs GPUs."""
    parallel = {
        "tensor_model_parallel_world_size": 4, "pipeline_model_parallel_world_size": 2,
        "context_parallel_world_size": 1, "expert_model_parallel_world_size": 2,
        "data_parallel_world_size": 8, "data_parallel_rank": 3,
        "virtual_pipeline_model_parallel_world_size": None,
    }  # fmt: skip
    getters = {f"get_{name}": lambda value=value: value for name, value in parallel.items()}
    state = SimpleNamespace(model_parallel_is_initialized=lambda: True, **getters)
    batches = SimpleNamespace(
        _GLOBAL_NUM_MICROBATCHES_CALCULATOR=object(),
        get_micro_batch_size=lambda: 2,
        get_num_microbatches=lambda: 16,
    )
    arguments = SimpleNamespace(_GLOBAL_ARGS=SimpleNamespace(recompute_granularity="selective"))
    for name, module in (
        ("core.parallel_state", state),
        ("core.num_microbatches_calculator", batches),
        ("training.global_vars", arguments),
    ):
        monkeypatch.setitem(sys.modules, f"megatron.{name}", module)
    layouts.add_zero1(None)  # its DistributedOptimizer
    found = layouts.layout([], 64, 0)
    assert found == {
        "tp": 4, "pp": 2, "cp": 1, "ep": 2, "dp": 8, "data_rank": 3, "virtual_stages": 1,
        "sharding": "zero1", "checkpointing": "selective", "micro_batch": 2, "accumulation": 16,
        "pieces": None,
    }  # fmt: skip


#: A stand-in with the names of DeepSpeed's engine, whose optimizer steps for each group.
ENGINE = """
class DeepSpeedEngine:
    def __init__(self, module, optimizer, group):
        self.module, self.optimizer, self.data_parallel_group = module, optimizer, group
        self.mp_world_size, self.sequence_parallel_size, self.has_moe_layers = 1, 1, False

    def zero_optimization_stage(self):
        return 2

    def train_micro_batch_size_per_gpu(self):
        return 4

    def gradient_accumulation_steps(self):
        return 2

    def _take_model_step(self, lr_kwargs):
        groups = self.optimizer.param_groups
        for group in groups:
            self.optimizer.param_groups = [group]
            self.optimizer.step()
        self.optimizer.param_groups = groups
"""
SCRIPT = """
import json, os, torch
import torch.distributed as dist
from deepspeed.runtime.engine import DeepSpeedEngine
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
model = torch.nn.Linear(8, 1)
groups = [{"params": [parameter]} for parameter in model.parameters()]
engine = DeepSpeedEngine(model, torch.optim.SGD(groups, lr=0.1), dist.group.WORLD)
for number, rows in enumerate(torch.utils.data.DataLoader(torch.randn(96, 8), batch_size=4), 1):
    model(rows).mean().backward()
    if number % 2 == 0:
        engine._take_model_step(None)
"""


def test_deepspeed_steps_once_for_all_groups_and_shows_its_stage(tmp_path):
    folder = tmp_path / "deepspeed" / "runtime"
    folder.mkdir(parents=True)
    (folder / "engine.py").write_text(ENGINE)
    (tmp_path / "script.py").write_text(SCRIPT)
    run(tmp_path, tmp_path / "script.py")
    (process,) = processes(tmp_path).values()
    summary = summarise([process])
    assert process.problems == ()
    assert (summary.steps, summary.samples_seen) == (12, 96)
    assert (summary.parallelism, summary.sharding, summary.dp) == ("deepspeed", "zero2", 1)
    assert (summary.micro_batch, summary.gradient_accumulation) == (4, 2)


@pytest.mark.parametrize(
    ("batch", "tokens"),
    [
        ({"input_ids": torch.ones(4, 7, dtype=torch.int64), "labels": torch.ones(4)}, (0, 0)),
        ({"input_ids": torch.ones(4, 7, dtype=torch.int64)}, (28, 4)),
        ([torch.ones(4, 7, dtype=torch.int32), torch.ones(4, dtype=torch.int64)], (28, 4)),
        (torch.ones(4, 3, 8, 8, dtype=torch.uint8), (0, 0)),
        ({"text": ["a", "b"]}, (0, 0)),
    ],
)
def test_rows_of_integers_alone_are_tokens(batch, tokens):
    assert _tokens(batch) == tokens
