"""What the environment of runs lacks is found before they start: packages, kernels."""

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

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
    ("slurm", "is_told"),
    [({}, True), ({"setup": ["module load torch"]}, False), ({"python": "/on/nodes"}, False)],
)
def test_packages_of_jobs_are_those_of_this_python_if_they_use_it(
    tmp_path, monkeypatch, slurm, is_told
):
    path = write(tmp_path, kind="slurm", gpus_per_node=1, slurm=slurm)
    study = load_study(path)

    def refuse(spec: object) -> None:
        raise NotAvailable("digits-cnn needs sklearn")

    monkeypatch.setattr(catalogue, "check_installed", refuse)
    expected = [f"digits-cnn needs sklearn ({sys.executable})"] if is_told else []
    assert [*study.forecast().missing] == expected
