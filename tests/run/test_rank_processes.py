"""The ranks of a run on one node: real processes, real signals."""

import json
import os
import signal
import subprocess
import sys

import psutil
from test_worker_imports import BLOCKER

from conftest import records, wait_for, wattlaw
from wattlaw.running.training import rank_processes
from wattlaw.running.training.rank_processes import run_launcher, run_ranks

#: What torchrun gives one rank of two on a single node; torch's own documentation lists them.
SAME = {
    "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "ROLE_WORLD_SIZE": "2", "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "1", "ROLE_NAME": "default", "MASTER_ADDR": "127.0.0.1",
    "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0",
}  # fmt: skip


def python(code: str, *words: object) -> list[str]:
    return [sys.executable, "-c", code, *map(str, words)]


def test_each_rank_has_the_variables_of_torchrun(tmp_path):
    code = "import json, os, sys; json.dump(dict(os.environ), open(sys.argv[1] + os.environ['RANK'], 'w'))"  # noqa: E501
    before = signal.getsignal(signal.SIGTERM)
    assert run_ranks(python(code, tmp_path / "rank-"), 2) == {}
    assert signal.getsignal(signal.SIGTERM) == before
    ranks = [json.loads((tmp_path / f"rank-{rank}").read_text()) for rank in range(2)]
    for rank, found in enumerate(ranks):
        assert {name: found[name] for name in SAME} == SAME
        assert {found[name] for name in ("RANK", "LOCAL_RANK", "ROLE_RANK")} == {str(rank)}
    assert len({found["MASTER_PORT"] for found in ranks}) == 1
    assert len({found["TORCHELASTIC_RUN_ID"] for found in ranks}) == 1


def test_a_launcher_gets_no_options_of_srun_from_an_outer_job(tmp_path, monkeypatch):
    options = ("SRUN_CPUS_PER_TASK", "SBATCH_GRES", "SLURM_CPU_BIND", "SLURM_NTASKS_PER_NODE")
    kept = ("SLURM_JOB_ID", "SLURM_CPUS_ON_NODE", "SLURM_STEP_NUM_TASKS")
    for name in (*options, *kept):
        monkeypatch.setenv(name, "1")
    code = "import json, os, sys; json.dump(dict(os.environ), open(sys.argv[1], 'w'))"
    assert run_launcher(python(code, tmp_path / "found"), lambda: False) == 0
    found = json.loads((tmp_path / "found").read_text())
    assert not found.keys() & {*options}
    assert {*kept} <= found.keys()


def test_a_rank_that_fails_ends_the_others_and_only_its_code_is_reported(tmp_path):
    code = """
import os, pathlib, signal, sys, time
if os.environ["RANK"] == "1":
    while not pathlib.Path(sys.argv[1]).exists():
        time.sleep(0.01)
    sys.exit(3)
def end(*_):
    pathlib.Path(sys.argv[1] + "-ended").touch()
    sys.exit(1)
signal.signal(signal.SIGTERM, end)
pathlib.Path(sys.argv[1]).touch()
time.sleep(60)
"""
    assert run_ranks(python(code, tmp_path / "file"), 2) == {1: 3}
    assert (tmp_path / "file-ended").exists()


def test_a_rank_that_ignores_sigterm_is_killed(monkeypatch, tmp_path):
    monkeypatch.setattr(rank_processes, "_FAILED_GRACE_S", 0.5)
    code = """
import os, pathlib, signal, sys, time
if os.environ["RANK"] == "0":
    while not pathlib.Path(sys.argv[1]).exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))
time.sleep(60)
"""
    assert run_ranks(python(code, tmp_path / "pid"), 2) == {0: -signal.SIGKILL}
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


def test_a_signal_reaches_the_ranks_and_is_reported_once_they_have_ended(tmp_path):
    rank = """
import os, pathlib, signal, sys, time
def end(number, _):
    pathlib.Path(sys.argv[1] + os.environ["RANK"] + "-got").write_text(str(number))
    sys.exit(0)
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, end)
pathlib.Path(sys.argv[1] + os.environ["RANK"]).touch()
time.sleep(60)
"""
    agent = f"""
import sys
from wattlaw.running.training.rank_processes import EndedBySignal, run_launcher, run_ranks
try:
    run_ranks([sys.executable, "-c", {rank!r}, sys.argv[1]], 2)
except EndedBySignal as error:
    print(error)
"""
    line = python(agent, tmp_path / "rank-")
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        wait_for(lambda: len([*tmp_path.iterdir()]) == 2, "both ranks")
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        assert process.stdout.read() == "SIGINT\n"
    got = [(tmp_path / f"rank-{rank}-got").read_text() for rank in range(2)]
    assert got == [str(int(signal.SIGINT))] * 2


def test_a_study_of_commands_runs_where_torch_is_not_installed(tmp_path, write_study, monkeypatch):
    path = tmp_path / "path"
    path.mkdir()
    code = BLOCKER.format(blocked={"torch"}, begun=str(tmp_path / "begun.txt"))
    (path / "sitecustomize.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(path), *sys.path]))
    script = "import sys, time; assert 'torch' not in sys.modules; time.sleep(0.2)"
    study = write_study(
        workloads=[{"command": [sys.executable, "-c", script]}],
        sweeps=[{"gpus": [1, 2], "local_batch": [8]}],
        measure={"epochs": 1, "warmup_epochs": 0, "assume_cpu_w": 15},
    )
    found = wattlaw("run", study, "--store", tmp_path / "store")
    assert found.returncode == 0, found.stderr
    assert {record.status for record in records(tmp_path / "store").values()} == {"done"}
    assert "training.agent" in (tmp_path / "begun.txt").read_text()
