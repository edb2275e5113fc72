"""Commands that start ranks of their own: found by check, and never a result."""

import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import study_in
from paths import SCRIPTS
from wattlaw.api.studies import load_study
from wattlaw.cli.main import main
from wattlaw.common.errors import BadInput
from wattlaw.running.instrumentation.observer import wrong_ranks
from wattlaw.running.instrumentation.records import ProcessSteps
from wattlaw.running.training.rank_starters import find_rank_starter
from wattlaw.store.store import Store


@pytest.mark.parametrize(
    ("line", "program", "count"),
    [
        ("torchrun --nproc-per-node {gpus} train.py", "torchrun", "{gpus}"),
        ("python -m torch.distributed.run --nproc-per-node=4 t.py", "torchrun", "4"),
        ("{python} -um torch.distributed.launch t.py", "torchrun", "1"),
        ("env A=1 -u B nohup nice -n 5 torchrun t.py", "torchrun", "1"),
        ("uv run --with torch torchrun --nproc-per-node 2 t.py", "torchrun", "2"),
        ("apptainer exec --nv img.sif torchrun t.py", "torchrun", "1"),
        ("numactl --cpunodebind=0 -m 0 mpirun -n 4 python t.py -n 9", "mpirun", "4"),
        ("srun -n1 torchrun --nproc-per-node 2 t.py", "torchrun", "2"),
        ("accelerate launch --num_processes 1 t.py", "accelerate launch", "1"),
        ("lightning run model --devices=2 t.py", "lightning run", "2"),
    ],
)
def test_a_program_that_starts_ranks_is_seen(line, program, count):
    found = find_rank_starter(shlex.split(line))
    assert (found.program, found.count) == (program, count)


@pytest.mark.parametrize(
    "line",
    [
        "python train.py --launcher torchrun",
        "python -c 'torchrun'",
        "lightning download x",
        "sh -c 'torchrun t.py'",  # the steps of its ranks show it
        "taskset -c 0-3 python t.py --x mpirun",
    ],
)
def test_other_programs_are_not_taken_for_one(line):
    assert find_rank_starter(shlex.split(line)) is None


def write(folder: Path, command: str, gpus: list[int]) -> Path:
    spec = {"name": "mine", "command": shlex.split(command)}
    study = {
        "name": "own",
        "workloads": [spec],
        "sweeps": [{"gpus": gpus, "local_batch": [10]}],
        "measure": {"epochs": 1, "warmup_epochs": 0},
        "launch": {"gpus_per_node": 2, "threads_per_worker": 1},
    }
    return study_in(folder, study)


HERE = shlex.quote(sys.executable)


@pytest.mark.parametrize(
    "command",
    [
        f"{HERE} -m torch.distributed.run --nproc-per-node {{gpus}} t.py",
        f"{HERE} -m torch.distributed.run t.py",  # WORLD_SIZE is 1 in each
        f"{HERE} -m torch.distributed.run --nproc-per-node=gpu t.py",
    ],
)
def test_check_refuses_a_command_that_certainly_starts_other_ranks(tmp_path, command):
    with pytest.raises(BadInput, match=r"study.yaml: workloads\[0\]\.command: given .*; allowed:"):
        load_study(write(tmp_path, command, [1, 2]))
    load_study(write(tmp_path, command, [1, 2]), launch="simulated", hardware="mit-v100")


@pytest.mark.parametrize(
    ("command", "gpus"),
    [
        (f"{HERE} -m torch.distributed.run --nproc-per-node {{gpus}} t.py", [1]),
        (f"{HERE} -m accelerate.commands.launch --num_processes 1 t.py", [1, 2]),
        (f"{HERE} -m accelerate.commands.launch t.py", [1, 2]),
        (f"{HERE} -m torch.distributed.run --nnodes {{gpus}} --nproc-per-node 1 t.py", [2]),
    ],
)
def test_a_command_whose_ranks_may_be_right_is_not_refused(tmp_path, command, gpus):
    assert load_study(write(tmp_path, command, gpus)).plan.runs


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        (2, "of the 2 that were launched has started 2 ranks of its own"),
        (1, "trained as one of 2 ranks, but 1 was launched"),
    ],
)
def test_a_script_that_starts_ranks_is_no_result(tmp_path, monkeypatch, gpus, expected):
    """As torch.multiprocessing.spawn, which no command line shows."""
    monkeypatch.chdir(tmp_path)
    starter, script = (shlex.quote(str(SCRIPTS / name)) for name in ("start_ranks.py", "ddp.py"))
    (tmp_path / "run.sh").write_text(f"{HERE} {starter} 2 {script} --epochs 1\n")
    path = write(tmp_path, "bash run.sh", [gpus])
    assert main(["run", str(path), "--store", "store"]) == 1
    (record,) = Store(tmp_path / "store").records()
    assert record.status == "failed"
    assert expected in record.reason
    assert "once per GPU" in record.reason


def process(pid: int, begin_s: float = 0.0, **facts: Any) -> ProcessSteps:
    ends_s = begin_s + np.arange(10.0)
    return ProcessSteps("here", pid, ends_s, np.full(10, 8.0), **facts)


@pytest.mark.parametrize(
    ("processes", "is_wrong"),
    [
        ([process(n, rank=n, world_size=2, launched_rank=n) for n in range(2)], False),
        ([process(n, rank=n % 2, world_size=2, launched_rank=n // 2) for n in range(4)], True),
        # A script that trains twice, one after the other.
        ([process(n, 100.0 * (n // 2), rank=n % 2, world_size=2, launched_rank=n % 2)
          for n in range(4)], False),
        # Each with a model of its own: another note says so.
        ([process(n, rank=n, env_world_size=2, launched_rank=n) for n in range(2)], False),
        ([process(n, rank=0, env_world_size=1, launched_rank=n) for n in range(2)], True),
        ([process(1, rank=0, world_size=2, env_world_size=1), process(2, rank=1, world_size=2)],
         False),
        ([], False),
    ],
)  # fmt: skip
def test_ranks_are_those_that_were_launched(processes, is_wrong):
    assert (wrong_ranks(processes, 2) is not None) is is_wrong
