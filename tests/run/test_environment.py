"""What the environment of runs lacks is found before they start: packages, kernels, cores."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

import paths
from conftest import wattlaw
from pythons import python_without
from wattlaw.api.studies import load_study, run
from wattlaw.common.errors import NotAvailable
from wattlaw.measure.devices.nvidia.architectures import no_kernels_reason
from wattlaw.workloads import catalogue

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
    get_arch_list = lambda: {architectures!r}
    get_device_properties = lambda _: SimpleNamespace(
        uuid="{uuid}", total_memory={memory}, major=7, minor=0, name="Tesla V100-PCIE-32GB")
xpu = SimpleNamespace(is_available=lambda: False)
"""
METADATA = "Metadata-Version: 2.1\nName: torch\nVersion: 2.11.0+cu128\n"


@pytest.mark.parametrize(
    ("capability", "architectures", "advice"),
    [
        ((7, 0), CU128, "cu126"),
        ((7, 0), CU126, None),
        ((8, 0), CU128, None),
        ((8, 9), CU126, None),  # sm_86
        ((9, 0), ("sm_80", "compute_80"), None),
        ((9, 0), ("sm_80",), "sm_90"),
        ((9, 0), ("sm_90a",), None),
        ((10, 0), CU126, "cu128"),
        ((12, 0), CU128, None),
        ((7, 5), ("sm_70",), None),
        ((7, 0), ("sm_75",), "cu126"),
        ((9, 0), ("gfx90a",), None),
        ((7, 0), (), None),
    ],
)
def test_torch_has_kernels_for_a_board_or_says_which_build_has(capability, architectures, advice):
    reason = no_kernels_reason("a board", capability, "2.11.0", architectures)
    assert (reason is None) == (advice is None)
    assert reason is None or advice in reason


def write(folder: Path, workload: str = "digits-cnn", **launch: Any) -> Path:
    command = {"command": launch.pop("command")} if "command" in launch else {}
    study = {
        "name": "where",
        "workloads": [{"name": workload} | command],
        "sweeps": [{"gpus": [1], "local_batch": [8]}],
        "measure": {"epochs": 1, "warmup_epochs": 0},
        "launch": launch,
    }
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(study))
    return path


def torch_of_v100(folder: Path, architectures: tuple[str, ...], uuid: str = "x") -> Path:
    """Write a torch, and return the folder for PYTHONPATH."""
    packages = folder / "packages"
    (packages / "torch").mkdir(parents=True)
    text = TORCH.format(architectures=[*architectures], uuid=uuid, memory=34_089_730_048)
    (packages / "torch" / "__init__.py").write_text(text)
    (packages / "torch-2.11.0.dist-info").mkdir()
    (packages / "torch-2.11.0.dist-info" / "METADATA").write_text(METADATA)
    return packages


def slurm_commands(folder: Path, **outputs: str) -> None:
    """Write Slurm's commands that print a text each, and note that they were called."""
    folder.mkdir(exist_ok=True)
    for name in ("squeue", "sbatch", "sinfo", "scontrol"):
        text = outputs.get(name, "")
        (folder / name).write_text(
            f"#!/bin/sh\necho {name} >> {folder}/calls\ncat <<'END'\n{text}\nEND\n"
        )
        (folder / name).chmod(0o755)


@pytest.mark.parametrize(("architectures", "code"), [(CU128, 3), (CU126, 0)])
def test_a_torch_without_kernels_for_the_label_is_refused_before_a_job(
    tmp_path, monkeypatch, architectures, code
):
    slurm_commands(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", str(torch_of_v100(tmp_path, architectures)))
    path = write(tmp_path, kind="slurm", gpus_per_node=2, hardware="mit-v100")
    checked = wattlaw("check", path)
    assert checked.returncode == 0
    assert ("has no kernels for NVIDIA V100" in checked.stderr) == bool(code)
    if code:
        ended = wattlaw("run", path, "--store", tmp_path / "s")
        assert ended.returncode == code
        assert "CUDA 12.6 (cu126)" in ended.stderr.splitlines()[-1]
        assert "sbatch" not in (tmp_path / "bin" / "calls").read_text()
        assert not (tmp_path / "s" / "runs").exists()


@pytest.mark.parametrize("architectures", [CU128, CU126])
def test_boards_of_this_machine_need_kernels_and_memory(
    tmp_path, monkeypatch, fake_gpus, architectures
):
    uuid = fake_gpus(1).ids[0].removeprefix("GPU-")
    packages = torch_of_v100(tmp_path, architectures, uuid)
    monkeypatch.setenv("PYTHONPATH", str(packages))
    missing = load_study(write(tmp_path)).forecast().missing
    assert any("no kernels for Tesla V100" in text for text in missing) == (architectures is CU128)
    if missing:
        with pytest.raises(NotAvailable, match="cu126"):
            run(write(tmp_path), tmp_path / "s")
    (reason,) = load_study(write(tmp_path, "fourcastnet")).forecast().skipped.values()
    assert "Tesla V100-PCIE-32GB has 34.1 GB" in reason
    assert load_study(write(tmp_path, command=["true"])).forecast().missing == []


@pytest.mark.parametrize(
    ("packages", "workload", "expected"),
    [
        (("torchvision", "pillow", "pil"), "resnet50", 'pip install "wattlaw[vision]"'),
        (("sklearn",), "digits-cnn", "digits-cnn needs sklearn"),
        (("pydantic",), "digits-cnn", "pydantic"),
        (("torchvision",), "digits-cnn", None),
    ],
)
def test_the_python_of_jobs_is_asked_for_the_packages_of_workloads(
    tmp_path, packages, workload, expected
):
    python = str(python_without(tmp_path, *packages))
    path = write(tmp_path, workload, kind="slurm", gpus_per_node=1, slurm={"python": python})
    missing = load_study(path).forecast().missing
    if expected is None:
        assert missing == []
        return
    (sentence,) = missing
    assert expected in sentence
    assert python in sentence
    # Lines of setup may load what is missing on a login node.
    slurm = {"python": python, "setup": ["module load torch"]}
    path = write(tmp_path, workload, kind="slurm", gpus_per_node=1, slurm=slurm)
    known = load_study(path).forecast()
    assert known.missing == []
    assert any(expected in warning for warning in known.warnings)


def test_the_python_of_jobs_needs_what_wattlaw_needs_for_commands_too(tmp_path):
    def missing(python: object) -> list[str]:
        slurm = {"python": str(python)}
        path = write(tmp_path, command=["true"], kind="slurm", gpus_per_node=1, slurm=slurm)
        return load_study(path).forecast().missing

    (sentence,) = missing(python_without(tmp_path / "one", "pydantic"))
    assert "pydantic" in sentence
    assert missing(python_without(tmp_path / "other", "torch")) == []
    assert missing("/only/on/nodes/python") == []  # it is not judged


CONFIG = "SelectType = select/cons_tres\nSelectTypeParameters = {}\nJobDefaults = {}"
PARTITION = "PartitionName=gpu Default={} JobDefaults={} OverSubscribe={}"


@pytest.mark.parametrize(
    ("config", "partition", "slurm", "is_warned"),
    [
        (("CR_CORE_MEMORY", "(null)"), ("YES", "(null)", "NO"), {}, True),
        (("CR_CPU", "(null)"), ("YES", "(null)", "NO"), {"gres": None}, True),
        (("CR_CORE", "(null)"), ("YES", "(null)", "NO"), {"cpus_per_worker": 8}, False),
        (("CR_CORE", "(null)"), ("YES", "(null)", "NO"), {"options": {"exclusive": True}}, False),
        (("CR_CORE", "(null)"), ("YES", "(null)", "EXCLUSIVE"), {}, False),
        (("CR_CORE", "(null)"), ("YES", "DefCpuPerGPU=8", "NO"), {}, False),
        (("CR_CORE", "DefCpuPerGPU=8"), ("YES", "(null)", "NO"), {}, False),
        (("CR_MEMORY", "(null)"), ("YES", "(null)", "NO"), {}, False),
        (("CR_CORE", "(null)"), ("NO", "(null)", "NO"), {}, False),  # no default is known
    ],
)
def test_a_job_with_one_core_per_node_is_warned_of(
    tmp_path, monkeypatch, config, partition, slurm, is_warned
):
    slurm_commands(tmp_path / "bin")
    texts = CONFIG.format(*config), PARTITION.format(*partition)
    lines = ["#!/bin/sh", "if [ $2 = config ]; then cat <<'END'", *texts[0].splitlines(), "END"]
    lines += ["else", f"echo '{texts[1]}'", "fi"]
    (tmp_path / "bin" / "scontrol").write_text("\n".join(lines))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    path = write(tmp_path, kind="slurm", gpus_per_node=4, slurm=slurm)
    warnings = load_study(path).forecast().warnings
    assert any("cpus_per_worker" in warning for warning in warnings) == is_warned


def test_the_guide_to_clusters_installs_what_its_study_needs(tmp_path):
    text = (paths.ROOT / "docs" / "clusters.md").read_text()
    commands = text.split("```console\n")[1].split("```")[0]
    study = commands.split("<<'END'\n")[1].split("END\n")[0]
    (tmp_path / "study.yaml").write_text(study)
    loaded = load_study(tmp_path / "study.yaml")
    (workload,) = loaded.plan.study.workloads
    assert f"clone[{catalogue.entry(workload.name).extra}]" in commands
    assert loaded.plan.study.launch.slurm.cpus_per_worker is not None
    assert {run.spec.nodes for run in loaded.plan.runs} == {1, 2, 4, 8}
