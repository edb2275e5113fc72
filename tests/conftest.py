"""What several test files share: studies on disk, the command line as a process, real runs."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pynvml
import pytest
import yaml
from hypothesis import settings

from fake_amdsmi import AmdMachine
from fake_nvml import VARIABLE, FakeGpus
from wattlaw.common.processes import handling
from wattlaw.store.store import Store
from wattlaw.study.model import Study

# More test processes than cores: threads of their own would wait for each other, and nets as small
# as those here take three times the processor's time. Launchers tell their workers how many.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# An unexpected exception shows its traceback in tests.
os.environ.setdefault("WATTLAW_TRACEBACK", "1")

# The many processes of the tests load bytecode instead of compiling the package each.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A first example may import a library; how long one takes says nothing here. The soak tries more
# examples than the usual 100.
settings.register_profile("wattlaw", deadline=None, max_examples=60)
settings.load_profile("wattlaw")

PLUGIN = Path(__file__).parent / "support" / "plugin"
#: A package with a meter of devices that exist where WATTLAW_SIMULATED is set.
SIMULATED_DEVICES = Path(__file__).parent / "support" / "simulated_devices"
sys.path.append(str(SIMULATED_DEVICES))
WAIT_S = 60.0


def study_of(**changes: object) -> dict[str, object]:
    """Return a small valid study, with top-level keys replaced."""
    study: dict[str, object] = {
        "name": "test",
        "workloads": [{"name": "digits-cnn"}],
        "sweeps": [{"gpus": [1], "global_batch": [128]}],
        "measure": {"epochs": 2, "warmup_epochs": 1, "sample_hz": 20},
        "launch": {"kind": "local", "gpus_per_node": 4},
    }
    return study | changes


def parsed(**changes: object) -> Study:
    """Return that study as it is read from a file."""
    return Study.model_validate_json(json.dumps(study_of(**changes)))


#: Long enough to be killed in the middle, and far shorter than the tests' time limit.
LONG = {"epochs": 8, "warmup_epochs": 1, "sample_hz": 20, "assume_cpu_w": 15}


#: The slowest files first, so that none of them is the last one that a single process runs.
SLOW = (
    # Of tests/slurm.
    "losses", "notices", "failures", "decisions", "front_end", "whole_studies", "prolog_epilog",
    "gpu_acceptance", "pythons", "instrumentation", "measure",
    "workloads", "campaign", "killed_owners", "preemption", "failing_ranks", "figures",
    "training", "report", "commands", "simulated_launcher", "attempts",
    "readme", "track", "sampler", "molecules", "vision", "advice",
    "image_files",
    "command_line", "limit_comparison", "claims", "site_limits", "full_disk",
    "cancel", "import_isolation", "hostile_limits", "damaged_stores",
    "tables", "implausible_energy", "unexpected_errors", "terminal_output",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put slow files first; xdist keeps that order with ``--no-loadscope-reorder``."""
    places = {f"test_{name}.py": place for place, name in enumerate(SLOW)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))


@pytest.fixture(scope="session", autouse=True)
def own_machine(tmp_path_factory):
    """Give the tests places of their own, so that a real campaign here and they do not wait."""
    with pytest.MonkeyPatch.context() as patch:
        folder = str(tmp_path_factory.mktemp("places"))
        patch.setenv("TMPDIR", folder)
        patch.setattr("tempfile.tempdir", folder)
        patch.setenv("WATTLAW_LOCKS", folder)
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture
def write_study(tmp_path):
    """Give a function that writes a study file and returns its path."""

    return lambda **changes: study_in(tmp_path, study_of(**changes))


def study_in(folder: Path, study: dict[str, Any]) -> Path:
    """Write a study file into a folder."""
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(study))
    return path


@pytest.fixture
def some(monkeypatch):
    """Leave a few figures in the gallery, as all take a while to draw."""
    from wattlaw.report.core_sections import gallery  # slow to import

    few = tuple(figure for figure in gallery() if figure.name in ("energy", "pareto", "speedup"))
    monkeypatch.setattr("wattlaw.report.core_sections.gallery", lambda: few)
    return few


def decide_table(batches: Iterable[int] = (8, 32), gpus: Iterable[int] = (1, 2, 4, 8)) -> str:
    """Return measurements in which one GPU with the largest batch uses the fewest GPU-hours."""
    header = "workload,hardware,gpus,nodes,local_batch,step_time_s,power_per_gpu_w,startup_s"
    rows = [
        f"bert,T4,{count},1,{batch},{0.02 + 0.01 * batch + 0.004 * (count > 1)},{60 + batch},20"
        for count in gpus
        for batch in batches
    ]
    return "\n".join([header, *rows, ""])


@pytest.fixture
def write_decide(tmp_path):
    """Return a function that writes a study with ``decide`` on a table, and returns its path."""
    return partial(decide_in, tmp_path)


def decide_in(folder: Path, decide: object, content: str | None = None, **changes: object) -> Path:
    (folder / "table.csv").write_text(content or decide_table())
    study = {
        "workloads": [{"name": "bert", "dataset_samples": 1000}],
        "sweeps": [{"gpus": [1, 2, 4, 8], "local_batch": [8, 32]}],
        "repeats": 2,
        "measure": {"steps": 100, "warmup_steps": 10},
        "launch": {"kind": "replay", "table": "table.csv", "gpus_per_node": 8},
    }
    values = study | ({} if decide is None else {"decide": decide}) | changes
    return study_in(folder, study_of(**values))


@pytest.fixture
def fake_gpus(tmp_path, monkeypatch):
    """Return a function that makes fake boards the visible boards of this process."""
    for name in [name for name in os.environ if name.startswith(("CUDA_", "SLURM_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv(VARIABLE, "")
    made: list[FakeGpus] = []

    def make(count: int = 1, **changes: object) -> FakeGpus:
        made.append(FakeGpus.create(tmp_path / f"boards{len(made)}", count, **changes))
        made[-1].load()
        return made[-1]

    yield make
    for boards in made:
        boards.clear_faults()
    with contextlib.suppress(pynvml.NVMLError):
        while made:  # whatever a test left open
            pynvml.nvmlShutdown()


@pytest.fixture
def amd_machine(monkeypatch):
    """Return a function that makes AMD GPUs the only GPUs of this process.

    The trees are where other users may look, as they may in /sys.
    """
    for name in [n for n in os.environ if n.startswith(("CUDA_", "HIP_", "ROC", "SLURM_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv(VARIABLE, "")
    with contextlib.ExitStack() as end:

        def make(model: str = "MI210", count: int = 2, *, library: bool = True) -> AmdMachine:
            root = Path(end.enter_context(tempfile.TemporaryDirectory(dir="/var/tmp")))
            root.chmod(0o755)
            machine = AmdMachine(root, model, count, library=library)
            setenv(monkeypatch, machine.environment())
            return machine

        yield make


def setenv(patch: pytest.MonkeyPatch, values: Mapping[str, str]) -> None:
    for name, value in values.items():
        patch.setenv(name, value)


def wattlaw(*arguments: object, **options: object) -> "subprocess.CompletedProcess[str]":
    """Run the command line as a user does, and wait for it."""
    return python("-m", "wattlaw", *arguments, **options)


def python(
    *words: object, check: bool = False, **options: Any
) -> "subprocess.CompletedProcess[str]":
    """Run this Python in the environment of child processes, and wait for it."""
    usual = {"timeout": 170, "env": environment(), "text": True}
    if "stdout" not in options:
        usual["capture_output"] = True
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, check=check, **(usual | options))


def environment() -> dict[str, str]:
    """Return the environment of child processes: with the tests' plug-in packages installed."""
    packages = [str(PLUGIN), str(SIMULATED_DEVICES), os.environ.get("PYTHONPATH")]
    path = os.pathsep.join(filter(None, packages))
    return os.environ | {"PYTHONPATH": path, "COLUMNS": "120"}


@contextmanager
def heard() -> Iterator[None]:
    """Let processes that are started meanwhile hear Ctrl-C and hangup, though we be under nohup."""
    interrupt = handling([signal.SIGINT], signal.default_int_handler)
    with interrupt, handling([signal.SIGHUP], signal.SIG_DFL):
        yield


@contextmanager
def started(*arguments: object) -> Iterator["subprocess.Popen[str]"]:
    """Run the command line in the background; whatever is left of it at the end is killed."""
    line = [sys.executable, "-m", "wattlaw", *map(str, arguments)]
    with heard():
        process = subprocess.Popen(
            line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment()
        )
    family: list[psutil.Process] = []
    try:
        yield process
    finally:
        if process.poll() is None:
            family = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.communicate()
        for member in family:
            if member.is_running():
                member.kill()


def wait_for(condition: Callable[[], object], what: str, seconds: float = WAIT_S) -> object:
    """Wait until a condition holds, and return its value."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"waited {seconds:g} s for {what}")


def in_training(store: Path) -> list[Path]:
    """Return the window streams of the runs that have finished at least their first epoch."""
    streams = store.glob("runs/*/live/*/windows.*.csv")
    return [stream for stream in streams if stream.read_text().count("\n") > 2]


def processes_of(store: Path, module: str = "wattlaw.") -> list[psutil.Process]:
    """Return the living processes that work on a store, by module."""
    found = living(lambda line: any(part.startswith(str(store)) for part in line))
    return [process for process in found if module in " ".join(process.info["cmdline"])]


def living(is_meant: Callable[[list[str]], bool]) -> list[psutil.Process]:
    """Return the processes that have not ended, by their command lines."""
    return [
        process
        for process in psutil.process_iter(["cmdline", "status"])
        if is_meant(process.info["cmdline"] or [])
        and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


def records(store: Path) -> dict[str, object]:
    """Return a store's records by run id."""
    return {record.run_id: record for record in Store(store).records()}
