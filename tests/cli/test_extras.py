"""Packages that a workload needs and that are not installed: one line names the extra."""

import importlib.util
import sys
import tomllib

import pytest

import paths
from wattlaw.cli.main import main
from wattlaw.workloads import catalogue

PYPROJECT = tomllib.loads((paths.ROOT / "pyproject.toml").read_text())
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
FAMILIES = ("train", "vision", "language", "molecules", "weather")
OURS = {
    name: catalogue.entry(name)
    for name in PYPROJECT["project"]["entry-points"]["wattlaw.workloads"]
}
#: What PyPI calls a module of another name.
PACKAGES = {"sklearn": "scikit-learn", "PIL": "pillow", "physicsnemo": "nvidia-physicsnemo"}


def packages(extra: str) -> set[str]:
    """Return the packages of an extra, those of the extras that it includes too."""
    found = set()
    for requirement in EXTRAS[extra]:
        name, _, rest = requirement.partition("[")
        if rest and name == "wattlaw":
            found |= set().union(*map(packages, rest.rstrip("]").split(",")))
        else:
            found.add(requirement.split(">")[0])
    return found


@pytest.fixture
def without(monkeypatch, tmp_path):
    """Return a function that hides modules from ``importlib.util.find_spec``."""
    find = importlib.util.find_spec

    def hide(*hidden: str) -> None:
        if "torchvision" in hidden:
            monkeypatch.setattr(catalogue, "SEPARATE_TORCHVISION", tmp_path / "absent")
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name: None if name in hidden else find(name)
        )

    return hide


@pytest.mark.parametrize("name", OURS)
def test_the_extra_of_a_workload_installs_its_modules(name):
    entry = OURS[name]
    installed = {package.replace("-", "_") for package in packages(entry.extra)}
    assert entry.extra in FAMILIES
    assert {PACKAGES.get(name, name).replace("-", "_") for name in entry.modules} <= installed


@pytest.mark.parametrize(("name", "module"), [(name, OURS[name].modules[-1]) for name in OURS])
def test_a_workload_without_a_package_names_its_extra(
    name, module, without, write_study, tmp_path, capsys
):
    without(module)
    study = write_study(workloads=[{"name": name}])
    assert main(["run", str(study), "--store", str(tmp_path / "store")]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{name} needs {module}" in line
    assert f'pip install "wattlaw[{OURS[name].extra}]"' in line
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("module", "name", "content"),
    [
        ("h5py", "app.hdf5", b"\x89HDF\r\n\x1a\n"),
        ("tensorboardX", "events.out.tfevents.1", b"x" * 9 + b"brain.Event:2"),
    ],
)
def test_a_format_without_its_package_names_the_extra(
    module, name, content, monkeypatch, tmp_path, capsys
):
    monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / name).write_bytes(content)
    assert main(["import", str(tmp_path / name), "--store", str(tmp_path / "store")]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{module} is needed" in line
    assert 'pip install "wattlaw[import]"' in line
    assert not (tmp_path / "store").exists()


def test_a_study_is_checked_shown_and_simulated_without_any(without, write_study, tmp_path):
    without(*{module for entry in OURS.values() for module in entry.modules})
    study = write_study(
        workloads=[{"name": "resnet50"}], sweeps=[{"gpus": [4], "local_batch": [8]}]
    )
    store = str(tmp_path / "store")
    assert main(["check", str(study)]) == 0
    assert main(["run", str(study), "--store", store, "--dry-run"]) == 0
    simulated = ["--launch", "simulated", "--hardware", "dgx-h100"]
    assert main(["run", str(study), "--store", store, *simulated]) == 0
