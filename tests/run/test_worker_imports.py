"""Modules of compute nodes import little, in their source and in a real run.

``store/store.py`` and ``store/tables.py`` are no part of it: they are read by the front end only,
as are ``cli``, ``report``, ``analysis`` and ``launch``.
"""

import ast
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_training import run_here

import paths
from conftest import PLUGIN, study_of
from wattlaw.study.model import Study

SOURCE = paths.ROOT / "src" / "wattlaw"
FOLDERS = ("training", "telemetry", "limits", "devices", "workloads", "instrumentation")
FILES = (
    "store/live.py", "store/streams.py", "store/record.py", "store/run_folder.py",
    "store/schema.py", "files.py",
    "study/base.py", "study/command.py", "study/decide.py", "study/footprint.py",
    "study/launching.py", "study/question.py", "study/setting.py", "study/sweep.py",
    "study/model.py", "study/identity.py", "quantities.py",
    "simulator/profile.py", "simulator/cluster.py",
    "processes.py", "registry.py", "machine.py", "errors.py", "isolation.py", "crash.py",
    "scopes.py", "terminal.py", "text.py", "__init__.py",
)  # fmt: skip
NEEDED = {"pydantic", "pydantic_core", "numpy", "pyarrow", "psutil", "pynvml"}
TRAINING = {
    "torch", "torchvision", "transformers", "tokenizers", "torch_geometric", "torch_cluster",
    "torch_sparse", "pyg_lib", "physicsnemo", "tfrecord", "crc32c", "h5py", "PIL", "sklearn",
    "google",  # protobuf, with which tfrecord reads
}  # fmt: skip
BLOCKED = (
    "pandas", "duckdb", "typer", "rich", "altair", "jinja2", "statsmodels", "yaml", "vl_convert",
)  # fmt: skip

#: Root's prolog and epilog, in a Python of the site's own; jobs never import them.
_HOOKS = ("__main__", "site_file", "hooks", "watch")
HOOKS = {SOURCE / "limits" / "site" / f"{name}.py" for name in _HOOKS}

WORKER_SIDE = sorted(
    [
        *(SOURCE / name for name in FILES),
        *(p for f in FOLDERS for p in (SOURCE / f).rglob("*.py") if p not in HOOKS),
    ]
)


def imported(source: str) -> Iterator[str]:
    """Yield the name of every module that a source imports, inside functions too.

    What stands under ``if TYPE_CHECKING:`` is never run.
    """
    waiting: list[ast.AST] = [ast.parse(source)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:  # of the same package
                continue
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            waiting += node.orelse
        else:
            waiting += ast.iter_child_nodes(node)


def own_modules(names: Iterator[str]) -> set[Path]:
    """Return the files of ours that are imported under some names."""
    found = set()
    for name in names:
        path = SOURCE.parent.joinpath(*name.split("."))
        found |= {p for p in (path.with_suffix(".py"), path / "__init__.py") if p.exists()}
    return found


def relative(path: Path) -> str:
    return str(path.relative_to(SOURCE))


@pytest.mark.parametrize("path", WORKER_SIDE, ids=relative)
def test_a_file_of_the_worker_side_imports_only_what_a_node_has(path):
    found = {name.partition(".")[0] for name in imported(path.read_text())}
    libraries = found - {"wattlaw"} - sys.stdlib_module_names
    in_training = relative(path).startswith(("training", "workloads"))
    assert libraries <= NEEDED | (TRAINING if in_training else set())


# ``wattlaw/__init__.py`` gives a user's own program ``track``, which is tried below.
@pytest.mark.parametrize(
    "path", [p for p in WORKER_SIDE if p.parent != SOURCE or p.name != "__init__.py"], ids=relative
)
def test_a_file_of_the_worker_side_imports_no_other_part_of_ours(path):
    packages = {SOURCE / folder / "__init__.py" for folder in ("store", "study", "simulator")}
    assert own_modules(imported(path.read_text())) <= {*WORKER_SIDE, *packages}


def test_the_packages_around_those_files_are_empty():
    for folder in ("store", "study", "simulator"):
        assert not list(imported((SOURCE / folder / "__init__.py").read_text()))


def test_imports_are_detected_anywhere_in_a_file():
    source = """
from typing import TYPE_CHECKING
import a.b, c as d
if TYPE_CHECKING:
    import never
else:
    import e
def f():
    try:
        from g.h import i
    except ImportError:
        class J:
            import k
"""
    found = {name.partition(".")[0] for name in imported(source)}
    assert found == {"typing", "a", "c", "e", "g", "k"}


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


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Block the libraries in child processes; return the file to which these write that they are.

    torch, pyarrow and scikit-learn look for some of them by themselves, and do without.
    """
    begun = tmp_path / "begun.txt"
    (tmp_path / "path").mkdir()
    code = BLOCKER.format(blocked=set(BLOCKED), begun=str(begun))
    (tmp_path / "path" / "sitecustomize.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "path"), str(PLUGIN)]))
    return begun


def test_blocked_modules_cannot_be_imported(begun):
    assert all(importlib.util.find_spec(name) for name in BLOCKED)
    for name in BLOCKED:
        line = [sys.executable, "-c", f"import {name}"]
        found = subprocess.run(line, capture_output=True, text=True, check=False)
        assert f"No module named '{name}'" in found.stderr
    assert len(begun.read_text().splitlines()) == len(BLOCKED)


def test_a_real_run_is_done_where_the_libraries_of_the_front_end_are_not(begun, tmp_path):
    study = study_of(
        sweeps=[{"gpus": [2], "global_batch": [96]}],
        measure={"epochs": 2, "warmup_epochs": 1, "assume_cpu_w": 15},
        launch={"gpus_per_node": 2, "threads_per_worker": 1},
    )
    store = run_here(Study.model_validate_json(json.dumps(study)), tmp_path / "store")
    (record,) = store.records()
    assert record.status == "done"
    assert (store.pandas("epochs").cpu_energy_j > 0).all()
    processes = begun.read_text()
    for part in ("training.agent", "telemetry.sampler", "training.worker"):
        assert f"'wattlaw.{part}'" in processes


def test_a_program_that_tracks_itself_needs_no_more_than_a_worker(begun, tmp_path):
    code = (
        "import sys, wattlaw\n"
        "with wattlaw.track('x', store=sys.argv[1]) as run, run.window('a'): pass"
    )
    line = [sys.executable, "-c", code, str(tmp_path / "store")]
    found = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (found.returncode, "Warning" in found.stderr) == (0, False), found.stderr
    assert len(list(tmp_path.glob("store/runs/*/epochs.parquet"))) == 1
