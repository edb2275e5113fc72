"""What a compute node needs: a run works without the libraries of the front end and the add-ons.

import-linter checks the source ("The worker side needs little on a compute node").
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_training import run_here

from conftest import PLUGIN, study_of
from wattlaw.study.model import Study

LIBRARIES = (
    "pandas", "duckdb", "typer", "rich", "altair", "jinja2", "statsmodels", "yaml", "vl_convert",
)  # fmt: skip
ADD_ONS = (
    "wattlaw_papers", "wattlaw_simulator", "wattlaw_dashboard", "wattlaw_site", "wattlaw_formats",
)  # fmt: skip
BLOCKED = (*LIBRARIES, *ADD_ONS)

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
    code = f"from importlib.util import find_spec; print([*map(find_spec, {BLOCKED!r})])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == f"{[None] * len(BLOCKED)}\n"
    assert begun.exists()


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
    for part in ("running.training.agent", "measure.telemetry.sampler", "running.training.worker"):
        assert f"'wattlaw.{part}'" in processes
