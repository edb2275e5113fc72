"""Studies of unmodified scripts: their steps, their end at a limit, their launchers."""

import io
import os
import re
import shutil
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from agents import free_port
from conftest import study_in, wattlaw
from paths import SCRIPTS
from wattlaw.cli.main import main
from wattlaw.store.record import RunRecord
from wattlaw.store.store import Store

COUNT = "for i in $(seq 10000); do echo step $i seen $((i*4)) loss 0.$i; sleep 0.02; done"
CORES = "Cpus_allowed_list:"
PATTERN = r"step (?P<step>\d+) seen (?P<samples>\d+) loss (?P<loss>\S+)"


def command(name: str, script: str, *words: str, **keys: Any) -> dict[str, Any]:
    return {"name": name, "command": ["{python}", str(SCRIPTS / script), *words], **keys}


def write(
    folder: Path, workloads: list[dict[str, Any]], sweeps: list[dict[str, Any]], **changes: Any
) -> Path:
    launch = {"gpus_per_node": 4, "threads_per_worker": 1, "max_parallel": 2}
    study = {"name": "scripts", "workloads": workloads, "sweeps": sweeps, "launch": launch}
    return study_in(folder, study | changes)


@pytest.fixture(scope="module")
def limited(tmp_path_factory):
    """Measure 20 steps of scripts that would run for long; return the store and the output."""
    folder = tmp_path_factory.mktemp("steps")
    epochs = ("--epochs", "100000")
    workloads = [
        command("plain", "plain.py", *epochs, dataset_samples=150),
        command("ddp", "ddp.py", *epochs),
        command("alone", "ddp.py", "--alone", *epochs),
        command("by-torchrun", "ddp.py", *epochs, "--accumulate", "5", launch_with="torchrun"),
        {"name": "shell", "command": ["sh", "-c", COUNT], "progress": {"pattern": PATTERN}},
    ]
    sweeps = [
        {"gpus": [1], "local_batch": [10], "workloads": ["plain", "shell"]},
        {"gpus": [2], "local_batch": [10], "workloads": ["ddp", "alone", "by-torchrun"]},
    ]
    path = write(folder, workloads, sweeps, measure={"steps": 20, "warmup_steps": 5})
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as output:
        patch.chdir(folder)
        patch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        code = main(["run", str(path), "--store", "store"])  # torchrun is beside this interpreter
    assert code == 0, output.getvalue()
    return folder / "store", output.getvalue()


def run_of(store: Path, name: str) -> tuple[RunRecord, pd.DataFrame]:
    (record,) = [r for r in Store(store).records() if r.spec.workload.name == name]
    epochs = Store(store).pandas("epochs")
    return record, epochs[epochs["run_id"] == record.run_id].sort_values("start_ns")


@pytest.mark.parametrize(
    ("name", "world", "parallelism", "samples"),
    [("plain", 1, "none", 10), ("ddp", 2, "ddp", 20), ("by-torchrun", 2, "ddp", 100)],
)
def test_a_script_is_ended_when_it_has_its_steps(name, world, parallelism, samples, limited):
    record, windows = run_of(limited[0], name)
    assert (record.status, record.attempts) == ("done", 1), record.reason
    assert set(windows["phase"]) == {"steps"}
    assert windows["epoch"].isna().all()
    steady = windows[~windows["warmup"].astype(bool)]
    assert 15 <= steady["steps"].sum() <= 20  # steps with a pause are left out
    assert windows["from_step"].min() == 1
    assert steady["samples"].sum() == samples * steady["steps"].sum()
    assert (steady["step_time_mean_s"] >= 0.02).all()
    facts = record.facts
    assert (facts.world_size, facts.parallelism, facts.instrumented) == (world, parallelism, True)
    assert facts.workers_cooperate is (True if world > 1 else None)
    assert facts.parameters is not None
    assert facts.gradient_bytes == 4 * facts.parameters


def test_workers_that_train_alone_are_marked_and_warned_about(limited):
    record, _ = run_of(limited[0], "alone")
    assert record.status == "done"
    assert (record.facts.workers_cooperate, record.facts.dataset_samples) == (False, None)
    assert any("DistributedDataParallel" in note for note in record.notes)
    lines = [line for line in limited[1].splitlines() if line.startswith("Warning: ")]
    (warning,) = [line for line in lines if "by-torchrun" not in line]
    assert "gpus: [1]" in warning
    assert "alone" in warning
    table = Store(limited[0]).pandas("runs").set_index("workload")
    assert not table.loc["alone", "workers_cooperate"]
    assert table.loc["ddp", ["world_size", "backend"]].tolist() == [2, "gloo"]


@pytest.mark.parametrize(("name", "ran"), [("ddp", 20), ("by-torchrun", 100)])
def test_the_table_of_runs_has_the_batch_that_ran(name, ran, limited):
    row = Store(limited[0]).pandas("runs").set_index("workload").loc[name]
    assert (row["global_batch"], row["local_batch"]) == (ran, ran // 2)
    record, _ = run_of(limited[0], name)
    assert record.spec.setting.global_batch == 20  # as declared
    notes = [note for note in record.notes if "batch" in note]
    if name == "ddp":
        assert row["global_batch_declared"] != row["global_batch_declared"]  # missing
        assert (notes, f"of {name} " in limited[1]) == ([], False)
    else:
        assert row["global_batch_declared"] == 20
        assert [re.findall(r"\d+", note) for note in notes] == [["100", "20", "100"]]
        assert "100 instead of 20 on 2 GPUs" in limited[1]


def test_a_program_without_pytorch_is_measured_by_its_log(limited):
    record, windows = run_of(limited[0], "shell")
    assert (record.facts.instrumented, record.facts.world_size) == (False, None)
    steady = windows[~windows["warmup"].astype(bool)]
    assert set(windows["phase"]) == {"steps"}
    assert 15 <= steady["steps"].sum() <= 20
    assert steady["samples"].sum() == 4 * steady["steps"].sum()
    assert steady["loss"].iloc[-1] > 0
    log = (limited[0] / "runs" / record.run_id / "log.txt").read_text()
    assert "step 1 seen 4 " in log
    assert "step 1000 " not in log


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs mpirun")
def test_mpirun_starts_the_ranks(tmp_path, monkeypatch):
    for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"):
        monkeypatch.setenv(name, "1")
    rank = "RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE MASTER_ADDR=127.0.0.1"
    script = f"exec {sys.executable} {SCRIPTS / 'ddp.py'} --epochs 100000"
    lines = {
        "ddp": f"{rank} MASTER_PORT={free_port()} {script}",
        "fails": f"grep {CORES} /proc/self/status; exit $((7 * OMPI_COMM_WORLD_RANK))",
    }
    workloads = [
        {"name": name, "command": ["sh", "-c", line], "launch_with": "mpirun"}
        for name, line in lines.items()
    ]
    sweeps = [
        {"gpus": [gpus], "local_batch": [10], "workloads": [name]}
        for name, gpus in (("ddp", 4), ("fails", 2))
    ]
    measure = {"steps": 20, "warmup_steps": 5}
    path = write(tmp_path, workloads, sweeps, measure=measure)
    done = wattlaw("run", path, "--store", tmp_path / "store", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    record, windows = run_of(tmp_path / "store", "ddp")
    assert (record.status, record.facts.world_size, record.facts.parallelism) == ("done", 4, "ddp")
    steady = windows[~windows["warmup"].astype(bool)]
    assert steady["samples"].sum() == 40 * steady["steps"].sum()
    record, _ = run_of(tmp_path / "store", "fails")
    assert (record.status, "mpirun" in record.reason) == ("failed", True)
    log = (tmp_path / "store" / "runs" / record.run_id / "log.txt").read_text()
    (cores,) = re.findall(f"{CORES}.*", Path("/proc/self/status").read_text())
    assert cores in log  # no rank is bound to one of them


def test_a_launcher_or_script_that_is_missing_is_named_before_a_run_starts(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("PATH", str(tmp_path))
    workloads = [command("mpi", "plain.py", launch_with="mpirun")]
    path = write(tmp_path, workloads, [{"gpus": [1], "local_batch": [10]}])
    assert main(["run", str(path), "--store", str(tmp_path / "store")]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert "mpirun" in line
    assert not (tmp_path / "store").exists()
    workloads = [
        command("there", "plain.py"),
        {"name": "gone", "command": ["{python}", "no-such.py"]},
    ]
    path = write(tmp_path, workloads, [{"gpus": [1], "local_batch": [10]}])
    for words in (["check"], ["run", "--store", str(tmp_path / "store")]):
        assert main([*words, str(path)]) == 2
        shown = capsys.readouterr()
        (line,) = shown.err.splitlines()
        there = f"does not exist in {Path.cwd()}"
        assert f'workloads[1].command: the script "no-such.py" {there}' in line
        assert "ok" not in shown.out
        assert not (tmp_path / "store").exists()
    cluster = {"kind": "slurm", "gpus_per_node": 1}  # a script may be on its nodes only
    write(tmp_path, workloads, [{"gpus": [1], "local_batch": [10]}], launch=cluster)
    assert main(["check", str(path)]) == 0
    assert 'warning: workloads[1].command: the script "no-such.py"' in capsys.readouterr().err
