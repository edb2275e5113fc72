"""Only a user's command imports modules of the working folder; wattlaw never does."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import PLUGIN, setenv
from fake_nvml import FakeGpus
from hostile import Hostile
from wattlaw.measure.limits.state_folder import VARIABLE
from wattlaw.running.planning import git_commit
from wattlaw.running.slurm.submission import write_script
from wattlaw.store.run_folder import RunFolder
from wattlaw.store.store import Store
from wattlaw.study.launching import Launch

COMMAND = Path(sys.executable).with_name("wattlaw")
BOARD_W = 140.0


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    boards = FakeGpus.create(tmp_path / "boards", high_w=BOARD_W, limit_mw=217_000)
    setenv(monkeypatch, {**boards.environment(), VARIABLE: str(tmp_path / "limits")})
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return Hostile(tmp_path / "hostile")


def test_a_hostile_folder_is_hostile_to_a_python_that_imports_from_it(hostile):
    line = [sys.executable, "-c", "import random"]
    subprocess.run(line, cwd=hostile.folder, capture_output=True, check=False)
    assert [words.split()[0] for words in hostile.imported] == ["random"]


def test_a_capped_study_is_run_in_a_hostile_folder(hostile, tmp_path, write_study):
    """The agent, sampler, watchdog, ranks and their loader processes."""
    study = write_study(
        workloads=[{"name": "digits-cnn", "options": {"width": 4}}],
        sweeps=[{"gpus": [1], "global_batch": [128], "power_limit_w": [150]}],
        train={"loader_workers": 1},
        launch={"gpus_per_node": 1, "threads_per_worker": 1},
    )
    hostile.does(COMMAND, "run", study, "--store", "store")
    store = Store(hostile.folder / "store")
    (record,) = store.records()
    assert record.status == "done"
    assert record.limits[0].power_limit_enforced_w == 150
    assert FakeGpus(tmp_path / "boards")[0].limit_mw == 217_000
    epochs = store.pandas("epochs")
    # How close they are is tested elsewhere; these windows are short, and machines may be busy.
    assert epochs.gpu_energy_j.to_numpy() == pytest.approx(BOARD_W * epochs.duration_s, rel=0.1)
    assert record.samplers[0].samples > 0


def test_empty_and_relative_entries_of_pythonpath_are_not_for_our_processes(hostile):
    """``PYTHONPATH=$PYTHONPATH:/x`` names the working folder where it was not set before."""
    path = f":.:./:../hostile:{PLUGIN}::relative"
    code = f"import os, sys; os.environ['PYTHONPATH'] = {path!r}\n"
    code += "from wattlaw.cli.main import main; sys.exit(main())"
    line = ("measure", "-o", ".", "--power-limit", "150", "--", "true")
    hostile.does(sys.executable, "-P", "-c", code, *line)
    (record,) = Store(hostile.folder).records()
    assert record.status == "done"
    assert record.limits[0].power_limit_enforced_w == 150
    assert "absent" in record.samplers[0].unavailable  # a meter of the plug-in: its entry counts


def test_a_program_that_tracks_itself_is_sampled_and_stored_from_a_hostile_folder(
    hostile, tmp_path
):
    program = tmp_path / "programs" / "program.py"
    program.parent.mkdir()
    program.write_text(
        "import wattlaw, time\n"
        "with wattlaw.track('own', store='store') as run:\n"
        "    with run.window('a'):\n        time.sleep(0.5)\n"
    )
    hostile.does(sys.executable, program)
    (record,) = Store(hostile.folder / "store").records()
    assert record.status == "done"
    assert record.samplers[0].samples > 0


GIVEN = [
    {},
    {"PYTHONPATH": ":relative::/absolute:", "PYTHONSAFEPATH": ""},
    {"PYTHONPATH": "", "PYTHONSAFEPATH": "1"},
]


@pytest.fixture
def project(tmp_path):
    """Give a folder with a module ``here``, and a script elsewhere with a module beside it.

    Both are imported where Python does so: not where the user has set PYTHONSAFEPATH.
    """
    (tmp_path / "project").mkdir()
    (tmp_path / "scripts").mkdir()
    tells = "import json, os, sys\njson.dump(dict(os.environ), open(sys.argv[1], 'w'))\n"
    for path in ("scripts/script.py", "scripts/beside.py", "project/module.py", "project/here.py"):
        (tmp_path / path).touch()
    text = f"{tells}if not os.environ.get('PYTHONSAFEPATH'): import "
    (tmp_path / "scripts" / "script.py").write_text(f"{text}beside")
    (tmp_path / "project" / "module.py").write_text(f"{text}here")
    return tmp_path / "project"


def environment_of(given: dict[str, str]) -> dict[str, str]:
    """Return an environment whose only variables about Python's imports are those given."""
    bare = {n: value for n, value in os.environ.items() if not n.startswith("PYTHON")}
    return bare | {"LC_ALL": "C.UTF-8"} | given


@pytest.mark.parametrize("given", GIVEN[1:])
def test_a_measured_command_has_exactly_the_environment_that_the_user_gave(project, given):
    line = [COMMAND, "measure", "-o", "store", "--instrument", "none", "--"]
    line += [sys.executable, "../scripts/script.py", "told"]
    subprocess.run(line, cwd=project, env=environment_of(given), check=True, capture_output=True)
    assert json.loads((project / "told").read_text()) == environment_of(given)


@pytest.mark.parametrize("given", GIVEN)
def test_the_driver_of_a_job_has_absolute_entries_only_and_a_command_what_the_user_gave(
    given, tmp_path
):
    write_script(RunFolder(tmp_path), Launch(kind="slurm", gpus_per_node=1))
    code = (
        "import json, os; from wattlaw.common.isolation import isolate, user_environment\n"
        "begun = os.environ.get('PYTHONPATH'); isolate()\n"
        "print(json.dumps([begun, os.environ.get('PYTHONPATH'), user_environment()]))"
    )
    line = ["bash", tmp_path / "job.sh", sys.executable, "-P", "-c", code]
    done = subprocess.run(line, env=environment_of(given), capture_output=True, check=True)
    begun, own, user = json.loads(done.stdout)
    assert (begun or None) == own == ("/absolute" if given.get("PYTHONPATH") else None)
    assert {name: value for name, value in user.items() if "PYTHON" in name} == given


def test_the_commit_of_a_repository_starts_no_program_that_it_names(tmp_path):
    marker = tmp_path / "started"
    program = tmp_path / "monitor"
    program.write_text(f"#!/bin/sh\ntouch {marker}\n")
    program.chmod(0o755)
    repository = tmp_path / "repository"
    git = ["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (
        ["init", "-q"],
        ["add", "."],
        ["commit", "-qm", "a"],
        ["config", "core.fsmonitor", str(program)],
    ):
        repository.mkdir(exist_ok=True)
        (repository / "a").write_text("a")
        subprocess.run([*git, *words], check=True)
    commit = git_commit(repository)
    assert commit is not None
    assert len(commit) == 40
    assert not marker.exists()
