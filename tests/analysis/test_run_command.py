"""The line that trains at a recommended setting."""

import json
from typing import Any

import pandas as pd
import pytest

from wattlaw.analysis.advise.advice import run_command
from wattlaw.analysis.advise.option import Option, Quantity
from wattlaw.analysis.advise.whole_job import needed_epochs
from wattlaw.analysis.metrics.comparable_runs import ComparableRuns
from wattlaw.study.question import Question
from wattlaw.study.setting import Setting

TRAIN = ["{python}", "train.py", "-b", "{local_batch}"]


def line(
    command: list[str], *, gpus: int = 1, nodes: int = 1, backend: str | None = None,
    program: str = "auto", threads: int | None = None, launcher: str = "local", **setting: Any,
) -> str | None:  # fmt: skip
    option = Option(
        setting=Setting(gpus, nodes, local_batch=32, **setting), hardware=None, launcher=launcher,
        threads_per_worker=threads, run_length=None, global_batch=32 * gpus, unit="epoch",
        time_s=Quantity(1.0), energy_j=None, amount=Quantity(90.0), source="measured", repeats=1,
    )  # fmt: skip
    job = {"command": command} | ({} if program == "auto" else {"launch_with": program})
    return run_command(option, pd.DataFrame({"options": [json.dumps(job)], "backend": [backend]}))


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({}, "python train.py -b 32"),
        (
            {"backend": "nccl", "threads": 3},
            "OMP_NUM_THREADS=3 torchrun --standalone --nproc-per-node 1 train.py -b 32",
        ),
        ({"program": "torchrun"}, "torchrun --standalone --nproc-per-node 1 train.py -b 32"),
        ({"gpus": 4}, "torchrun --standalone --nproc-per-node 4 train.py -b 32"),
        (
            {"gpus": 8, "nodes": 2},
            "torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint HOST:29500 --nproc-per-node 4 "
            "train.py -b 32",
        ),
        ({"gpus": 2, "program": "mpirun"}, "mpirun -n 2 python train.py -b 32"),
        ({"gpus": 2, "program": "srun"}, "srun --nodes 1 --ntasks 2 python train.py -b 32"),
        ({"threads": 3}, "OMP_NUM_THREADS=3 python train.py -b 32"),
        ({"power_limit_w": 200.0}, "wattlaw measure --power-limit=200 -- python train.py -b 32"),
        ({"launcher": "simulated"}, None),
        ({"gpus": 3, "nodes": 2}, None),  # nodes with other numbers of ranks
    ],
)
def test_the_line_starts_the_workers_as_the_runs_did(how, expected):
    assert line(TRAIN, **how) == expected


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["python", "t.py", "--epochs", "5"], "python t.py --epochs 90"),  # those that are asked
        (["python", "t.py", "--num_epochs=5", "my file"], "python t.py --num_epochs=90 'my file'"),
        (["python", "t.py", "{epochs}", "{seed}"], "python t.py 90 0"),
        (["python", "t.py", "--until", "{steps}"], None),  # known of a measurement only
        (["python", "t.py", "a\nb"], None),  # not one line
    ],
)
def test_the_line_has_the_values_of_a_training(command, expected):
    assert line(command) == expected


def test_workers_without_python_start_under_torchrun_too():
    expected = "torchrun --standalone --nproc-per-node 2 --no-python nice ./train 32"
    assert line(["nice", "./train", "{local_batch}"], gpus=2) == expected


def test_epochs_that_no_run_trained_are_those_of_the_command():
    options = json.dumps({"command": ["python", "t.py", "--epochs=30"]})
    row = {"precision": "fp32", "global_batch": 32, "epochs_trained": None, "options": options}
    job = ComparableRuns(pd.DataFrame([row]), "epoch", None, "GPU", (), {})
    amounts, cautions = needed_epochs(job, pd.DataFrame(), Question())
    assert (amounts["fp32", 32].mean, cautions) == (30, ())
    assert needed_epochs(job, pd.DataFrame(), Question(epochs=5))[0]["fp32", 32].mean == 5
