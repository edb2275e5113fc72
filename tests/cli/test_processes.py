"""Functions that all programs of wattlaw share."""

import os

import pytest

from wattlaw.common import processes
from wattlaw.workloads.data_loading import InMemory, workers_for

SLURM = ("SLURM_STEP_ID", "SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Give the folder of the control groups of a process on a machine with 64 cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    monkeypatch.setattr(processes, "_CGROUPS", tmp_path / "cgroup", raising=False)
    monkeypatch.setattr(processes, "_OWN_CGROUPS", tmp_path / "own", raising=False)
    for name in SLURM:
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/a/b\n", {"a/b/cpu.max": "800000 100000\n", "a/cpu.max": "max 100000\n"}, 8),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "450000 100000\n"}, 4),
        ("0::/a\n", {"a/cpu.max": "50000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "200000 50000\n"}, 4),  # a container of version 2
        ("0::/../host\n", {"cpu.max": "200000 50000\n"}, 4),
        ("1:cpu,cpuacct:/b\n0::/a\n", {"a/cpu.max": "300000 100000\n"}, 3),
        ("0::/a\n", {"a/cpu.max": "no number\n"}, 64),
        (None, {}, 64),
    ],
)
def test_the_cores_are_those_of_the_cpu_quota(machine, own, files, expected):
    for name, content in files.items():
        path = machine / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    if own is not None:
        (machine / "own").write_text(own)
    assert processes.cores() == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (("0", "8", "32"), 8),  # a task of a job step
        ((None, "8", "32"), 32),  # the script of a job of four tasks
        (("4294967290", "8", "32"), 32),  # the shell of salloc
        (("0", None, "16"), 16),
        (("0", "128", "128"), 64),
        (("0", "0", "-1"), 64),
        ((None, None, None), 64),
    ],
)
def test_the_cores_are_those_that_slurm_assigned(machine, monkeypatch, values, expected):
    for name, value in zip(SLURM, values, strict=True):
        if value is not None:
            monkeypatch.setenv(name, value)
    assert processes.cores() == expected


@pytest.mark.parametrize(
    ("cores", "sharing", "on_cpu", "with_gpu"),
    [(64, 4, 8, 8), (32, 8, 3, 3), (16, 8, 1, 1), (8, 8, 0, 1), (2, 4, 0, 1)],
)
def test_loader_processes_are_those_for_which_a_rank_has_cores(
    machine, monkeypatch, cores, sharing, on_cpu, with_gpu
):
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", str(cores))
    files, memory = (InMemory((), reads_files=each) for each in (True, False))
    for on_gpu, expected in ((False, on_cpu), (True, with_gpu)):
        assert workers_for(files, sharing, on_gpu=on_gpu) == expected
        assert workers_for(memory, sharing, on_gpu=on_gpu) == 0
