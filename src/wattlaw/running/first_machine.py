"""Where a first study is to run: this machine, or a partition of Slurm."""

import math
import os
from dataclasses import dataclass
from typing import Any

from wattlaw.common.processes import cores
from wattlaw.measure.devices.inventory import visible_gpu_ids
from wattlaw.running.boards import named_board
from wattlaw.running.local import LocalLauncher
from wattlaw.running.node_setup import limit_states, permission_problem
from wattlaw.running.slurm import commands
from wattlaw.running.training.environment import threads_of
from wattlaw.study.launching import Launch

#: Power caps, in shares of the default limit: 200 W and 150 W of the 250 W of a V100, as in the MIT
#: study (docs/papers.md).
_CAPS = (0.8, 0.6)
#: Without GPUs, a first study is small.
_MOST_CPU_WORKERS = 4


@dataclass(frozen=True)
class Machine:
    """Where the study is to run."""

    per_node: int  # GPUs of a node or, without GPUs, workers that share its cores
    launch: dict[str, Any]  # the section of the study
    nodes: int = 1
    has_gpus: bool = False
    memory_gb: float | None = None  # of a GPU
    default_w: float | None = None  # the power limit of a GPU
    caps_w: tuple[float, ...] = ()  # others to try
    no_caps_reason: str | None = None


def this_machine(*, is_parallel: bool = True) -> Machine:
    launcher = LocalLauncher.examine(Launch())
    if not launcher.gpus:
        return _of_cores(cores(), {"kind": "local"}, is_parallel)
    boards = visible_gpu_ids()
    states, reason = limit_states(boards), permission_problem(boards)
    default_w = min((state.default_w or 0.0 for state in states), default=0.0)
    caps_w = tuple(
        cap_w
        for cap_w in (10.0 * round(share * default_w / 10) for share in _CAPS)
        if all((state.min_w or math.inf) <= cap_w <= (state.max_w or 0) for state in states)
    )
    if len(states) < len(boards) or not caps_w or any(state.is_shared for state in states):
        reason = reason or "not every GPU has a power limit that can be set"
    sizes = [board.memory_gb for board in launcher.hardware]
    sizes = sizes or [getattr(named_board(state.name), "memory_gb", None) for state in states]
    known = [size for size in sizes if size is not None]
    return Machine(
        launcher.capacity,
        {"kind": "local", "threads_per_worker": launcher.threads},
        has_gpus=True,
        memory_gb=min(known) if known and len(known) == len(sizes) else None,
        default_w=default_w,
        caps_w=() if reason else caps_w,
        no_caps_reason=reason,
    )


def slurm_machine(name: str, *, is_parallel: bool = True) -> Machine:
    found = commands.partition(name)
    slurm: dict[str, Any] = {"gres": found.gres or None, "options": {"partition": name}}
    launch: dict[str, Any] = {"kind": "slurm", "slurm": slurm}
    if not found.gpus:
        return _of_cores(found.cores, launch, is_parallel, found.nodes)
    slurm["cpus_per_worker"] = share = max(1, found.cores // found.gpus)
    launch |= {"gpus_per_node": found.gpus, "threads_per_worker": threads_of(os.environ) or share}
    board = named_board(found.gres)
    return Machine(
        found.gpus, launch, found.nodes, has_gpus=True,
        memory_gb=board and board.memory_gb, no_caps_reason="needs root or the site's prolog",
    )  # fmt: skip


def _of_cores(count: int, launch: dict[str, Any], is_parallel: bool, nodes: int = 1) -> Machine:
    per_node = 2 ** int(math.log2(min(count, _MOST_CPU_WORKERS))) if is_parallel else 1
    share = count // per_node
    if "slurm" in launch:
        launch["slurm"]["cpus_per_worker"] = share
    launch |= {"gpus_per_node": per_node, "threads_per_worker": threads_of(os.environ) or share}
    return Machine(per_node, launch, nodes)
