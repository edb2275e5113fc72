"""The ranks of a run on one node: real processes, real signals, and how little they import."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from test_training import run_here

from conftest import PLUGIN, parsed, records, wait_for, wattlaw
from wattlaw.running.training import rank_processes
from wattlaw.running.training.rank_processes import run_ranks

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


def test_a_notice_reaches_the_ranks_though_threads_of_libraries_do_not_block_it(tmp_path):
    rank = """
import pathlib, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))
pathlib.Path(sys.argv[1]).touch()
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
time.sleep(60)
sys.exit(1)
"""
    agent = """
import os, pathlib, signal, sys, threading, time
from wattlaw.running.training.rank_processes import block_notices, run_ranks
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
block_notices()
def notify():
    while not pathlib.Path(sys.argv[2]).exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGUSR1)
threading.Thread(target=notify, daemon=True).start()
sys.exit(len(run_ranks([sys.executable, "-c", *sys.argv[1:]], 1, forwards_notice=True)))
"""
    subprocess.run(python(agent, rank, tmp_path / "ready"), check=True, timeout=50)


def test_a_study_of_commands_runs_where_torch_is_not_installed(tmp_path, write_study, monkeypatch):
    begun = block({"torch"}, tmp_path, monkeypatch, *sys.path)
    script = "import sys, time; assert 'torch' not in sys.modules; time.sleep(0.2)"
    study = write_study(
        workloads=[{"command": [sys.executable, "-c", script]}],
        sweeps=[{"gpus": [2], "local_batch": [8]}],
        measure={"epochs": 1, "warmup_epochs": 0, "assume_cpu_w": 15},
    )
    found = wattlaw("run", study, "--store", tmp_path / "store")
    assert found.returncode == 0, found.stderr
    assert {record.status for record in records(tmp_path / "store").values()} == {"done"}
    assert "training.agent" in begun.read_text()


BLOCKED = (
    "pandas", "typer", "rich", "altair", "jinja2", "statsmodels", "yaml", "vl_convert",
    "wattlaw_papers", "wattlaw_simulator", "wattlaw_dashboard", "wattlaw_site", "wattlaw_formats",
)  # fmt: skip

#: Makes the libraries of the front end not be there, in every process that is started with it.
BLOCKER = """
import sys
from importlib.machinery import PathFinder
class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            return None
        return super().find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Without
with open({begun!r}, "a") as file:
    file.write(f"{{sys.orig_argv}}\\n")
"""


def block(names: set[str], folder: Path, patch: pytest.MonkeyPatch, *path: str) -> Path:
    """Block modules in child processes; return the file to which these write that they are."""
    begun = folder / "begun.txt"
    (folder / "path").mkdir()
    code = BLOCKER.format(blocked=names, begun=str(begun))
    (folder / "path" / "sitecustomize.py").write_text(code)
    patch.setenv("PYTHONPATH", os.pathsep.join([str(folder / "path"), *path]))
    return begun


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """torch, pyarrow and scikit-learn look for some of them by themselves, and do without."""
    return block({*BLOCKED}, tmp_path, monkeypatch, str(PLUGIN))


def test_blocked_modules_cannot_be_imported(begun):
    assert all(importlib.util.find_spec(name) for name in BLOCKED)
    code = f"from importlib.util import find_spec; print([*map(find_spec, {BLOCKED!r})])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == f"{[None] * len(BLOCKED)}\n"
    assert begun.exists()


def test_a_real_run_is_done_where_the_libraries_of_the_front_end_are_not(begun, tmp_path):
    study = parsed(
        workloads=[{"name": "digits-cnn", "options": {"width": 4}}],
        sweeps=[{"gpus": [2], "global_batch": [96]}],
        measure={"epochs": 1, "warmup_epochs": 0, "assume_cpu_w": 15},
        launch={"gpus_per_node": 2, "threads_per_worker": 1},
    )
    store = run_here(study, tmp_path / "store")
    (record,) = store.records()
    assert record.status == "done"
    assert (store.pandas("epochs").cpu_energy_j > 0).all()
    processes = begun.read_text()
    for part in ("running.training.agent", "measure.telemetry.sampler", "running.training.worker"):
        assert f"'wattlaw.{part}'" in processes
