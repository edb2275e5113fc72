"""What is known before a study starts: skipped runs, unused values, missing packages, kernels."""

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import study_in
from wattlaw.api.studies import load_study, run
from wattlaw.cli.main import main
from wattlaw.common.errors import NotAvailable
from wattlaw.measure.devices.nvidia.architectures import no_kernels_reason
from wattlaw.running.local import LocalLauncher
from wattlaw.running.planning import skipped_text
from wattlaw.store.store import Store
from wattlaw.study.launching import Launch
from wattlaw.workloads import catalogue


def write(folder: Path, **changes: Any) -> Path:
    study = {
        "name": "before",
        "workloads": [{"name": "mine", "command": ["true"]}],
        "sweeps": [{"gpus": [1, 64], "local_batch": [8]}],
        "measure": {"epochs": 1, "warmup_epochs": 0},
        "order": "as_written",
        "launch": {"gpus_per_node": 2},
    }
    return study_in(folder, study | changes)


def told_of(path: Path, **changes: Any) -> list[str]:
    study = load_study(path, **changes)
    known = study.forecast()
    return [*skipped_text(known.skipped.values(), len(study)), *known.warnings]


@pytest.mark.parametrize(("tp", "is_wide"), [(2, False), (4, False), (8, True)])
def test_layers_that_several_nodes_share_are_a_warning(tmp_path, tp, is_wide):
    sweep = {"gpus": [8], "local_batch": [8], "tp": [tp]}
    launch = {"kind": "slurm", "gpus_per_node": 4}
    workloads = [{"name": "mine", "command": ["python", "t.py", "{tp}", "{local_batch}"]}]
    told = told_of(write(tmp_path, sweeps=[sweep], launch=launch, workloads=workloads))
    assert [text for text in told if "tp 8 with 4 GPUs" in text] == told[: int(is_wide)]


def test_uneven_nodes_are_skipped_in_a_dry_run(tmp_path, capsys):
    path = write(
        tmp_path,
        sweeps=[{"gpus": [5, 4, 3], "local_batch": [8]}],
        launch={"kind": "slurm", "gpus_per_node": 4},
    )
    assert main(["run", str(path), "--store", str(tmp_path / "s"), "--dry-run"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "3 runs: 1 skipped, 2 planned. Nothing was run." in shown
    assert "1 run of 3 will be skipped: 5 gpus on 2 nodes; allowed: the same number" in shown
    assert "--nodes=1" in shown  # the job of a run that can be one
    preview = load_study(path).preview(tmp_path / "s")
    assert {preview.to_dict()["skipped"][run_id][:6] for run_id in preview.skipped} == {"5 gpus"}
    assert preview.to_frame().set_index("gpus")["status"].to_dict() == {
        4: "planned",
        5: "skipped",
        3: "planned",
    }


TABLE = "workload,gpus,local_batch,step_time_s,dataset_samples\nmine,1,8,0.1,800\n"


@pytest.mark.parametrize(
    ("launch", "reason"),
    [
        ({"kind": "simulated", "simulation": {"hardware": "mit-v100"}}, "cannot be simulated"),
        ({"kind": "replay", "table": "table.csv"}, "no row for"),
        ({"kind": "local", "gpus_per_node": 2}, "needs 64 workers; this machine has 2"),
    ],
)
def test_every_launcher_says_what_it_will_skip(tmp_path, capsys, launch, reason):
    (tmp_path / "table.csv").write_text(TABLE)
    path = write(tmp_path, launch=launch)
    known = load_study(path).preview(tmp_path / "s").skipped
    assert main(["check", str(path)]) == 0
    assert reason in capsys.readouterr().out
    outcome = run(path, tmp_path / "s")
    skipped = {record.run_id: record.reason for record in Store(tmp_path / "s").records()
               if record.status == "skipped"}  # fmt: skip
    assert skipped == known
    assert outcome.skipped == len(known) >= 1
    assert outcome.is_success


SCRIPT = "import os, pathlib\nrecord = pathlib.Path(os.environ['WATTLAW_RUN_FOLDER'])\n"


@pytest.mark.parametrize(
    ("words", "sweep", "changes", "expected"),
    [
        (["t.py"], {"local_batch": [8, 16]}, {}, ["{global_batch} or {local_batch}"]),
        (["t.py", "{global_batch}"], {"global_batch": [16, 32]}, {}, []),
        (["t.py"], {"local_batch": [8], "gpus": [1, 2]}, {}, []),  # weak scaling
        (["t.py"], {"local_batch": [8], "epochs": 3}, {}, ["{epochs}"]),
        (["t.py"], {"local_batch": [8]}, {"train": {"gradient_accumulation": 4}},
         ["train.gradient_accumulation"]),
        (["reads.py"], {"local_batch": [8, 16], "precision": ["bf16"]}, {}, []),
        (["t.py"], {"local_batch": [8, 16], "precision": ["bf16"]}, {},
         ["{global_batch} or {local_batch}", "{precision}"]),
    ],
)  # fmt: skip
def test_values_that_nothing_takes_are_named(
    tmp_path, monkeypatch, words, sweep, changes, expected
):
    monkeypatch.chdir(tmp_path)
    Path("t.py").write_text("")
    Path("reads.py").write_text(SCRIPT)
    spec = {"name": "mine", "command": ["{python}", *words]}
    path = write(tmp_path, workloads=[spec], sweeps=[{"gpus": [1]} | sweep], **changes)
    told = told_of(path)
    assert len(told) == len(expected)
    for sentence, part in zip(told, expected, strict=True):
        assert sentence.startswith("workloads[0].command: ")
        assert part in sentence
    assert told_of(path, launch="simulated", hardware="mit-v100")[1:] == []


def test_caps_without_a_device_and_too_many_workers_are_named(tmp_path):
    sweep = {"gpus": [1], "local_batch": [8], "power_limit_w": [None, 200]}
    told = told_of(write(tmp_path, sweeps=[sweep], launch={"gpus_per_node": 10_000}))
    assert told[0].startswith("1 run of 2 will be skipped: a power or clock limit")
    assert told[0].endswith("needs a GPU, and none is visible here")
    assert "launch.gpus_per_node is 10000; this machine has no GPU that torch can use" in told[1]


def test_caps_outside_the_range_are_skipped_and_a_missing_permission_is_named(
    tmp_path, fake_gpus, monkeypatch
):
    fake_gpus(2)
    sweep = {"gpus": [1], "local_batch": [8], "power_limit_w": [5, 250]}
    workloads = [{"name": "mine", "command": ["{python}", "t.py"]}]
    path = write(tmp_path, workloads=workloads, sweeps=[sweep], launch={"gpus_per_node": 2})
    (told,) = told_of(path)
    assert re.match("1 run of 2 will be skipped: a power limit of 5 W is outside .* W of", told)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("PATH", str(tmp_path))  # without sudo
    assert "setting limits requires root" in told_of(path)[1]


CU128 = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
CU126 = ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")
#: A torch of other boards, as much of it as is asked before a study starts.
TORCH = """
from types import SimpleNamespace
__version__ = "2.11.0+cu128"
version = SimpleNamespace(cuda="12.8", hip=None)
class cuda:
    is_available = lambda: True
    device_count = lambda: 1
    get_device_properties = lambda _: SimpleNamespace(
        uuid="{uuid}", total_memory={memory}, major=7, minor=0, name="Tesla V100-PCIE-32GB")
xpu = SimpleNamespace(is_available=lambda: False)
"""
METADATA = "Metadata-Version: 2.1\nName: torch\nVersion: 2.11.0+cu128\n"


@pytest.mark.parametrize(
    ("capability", "architectures", "advice"),
    [
        ((7, 0), CU128, "cu126"),
        ((8, 9), CU126, None),  # sm_86
        ((9, 0), ("sm_80", "compute_80"), None),
        ((9, 0), ("sm_90a",), None),
        ((10, 0), CU126, "cu128"),
        ((9, 0), ("gfx90a",), None),
        ((7, 0), (), None),
    ],
)
def test_torch_has_kernels_for_a_board_or_says_which_build_has(capability, architectures, advice):
    reason = no_kernels_reason("a board", capability, "2.11.0", architectures)
    assert (reason is None) == (advice is None)
    assert reason is None or advice in reason


def write_one(folder: Path, workload: str = "digits-cnn", **launch: Any) -> Path:
    sweeps = [{"gpus": [1], "local_batch": [8]}]
    return write(folder, workloads=[{"name": workload}], sweeps=sweeps, launch=launch)


def torch_of_v100(folder: Path, uuid: str) -> Path:
    """Write a torch, and return the folder for PYTHONPATH."""
    packages = folder / "packages"
    (packages / "torch").mkdir(parents=True)
    text = TORCH.format(uuid=uuid, memory=34_089_730_048)
    (packages / "torch" / "__init__.py").write_text(text)
    (packages / "torch-2.11.0.dist-info").mkdir()
    (packages / "torch-2.11.0.dist-info" / "METADATA").write_text(METADATA)
    return packages


def test_boards_of_this_machine_need_memory(tmp_path, monkeypatch, fake_gpus):
    uuid = fake_gpus(1).ids[0].removeprefix("GPU-")
    monkeypatch.setenv("PYTHONPATH", str(torch_of_v100(tmp_path, uuid)))
    assert load_study(write_one(tmp_path)).forecast().missing == []
    (reason,) = load_study(write_one(tmp_path, "fourcastnet")).forecast().skipped.values()
    assert "Tesla V100-PCIE-32GB has 34.1 GB" in reason


@pytest.mark.parametrize(
    ("slurm", "is_told"),
    [({}, True), ({"setup": ["module load torch"]}, False), ({"python": "/on/nodes"}, False)],
)
def test_packages_of_jobs_are_those_of_this_python_if_they_use_it(
    tmp_path, monkeypatch, slurm, is_told
):
    study = load_study(write_one(tmp_path, kind="slurm", gpus_per_node=1, slurm=slurm))

    def refuse(spec: object) -> None:
        raise NotAvailable("digits-cnn needs sklearn")

    monkeypatch.setattr(catalogue, "check_installed", refuse)
    expected = [f"digits-cnn needs sklearn ({sys.executable})"] if is_told else []
    assert [*study.forecast().missing] == expected


@pytest.mark.parametrize(
    ("of_study", "of_user", "expected"),
    [(3, "5", 3), (None, "5", 5), (None, "5,2", 5), (None, "auto", 4), (None, None, 4)],
)
def test_threads_are_those_of_the_study_or_of_the_user_or_a_share_of_the_cores(
    monkeypatch, of_study, of_user, expected
):
    monkeypatch.setattr("wattlaw.common.processes.cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS")
    if of_user is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", of_user)
    launch = Launch(gpus_per_node=2, threads_per_worker=of_study)
    assert LocalLauncher(launch, gpus=[], board_of={}).threads == expected
