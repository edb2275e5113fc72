"""Boards that are limited, the processes that limit them, and what those leave behind."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from conftest import heard, living, setenv, wait_for
from fake_amdsmi import AmdMachine
from fake_nvml import FakeGpus
from wattlaw.common.errors import BadInput
from wattlaw.measure.limits.requests import Limits
from wattlaw.measure.limits.restore import StaleLimit, restore_stale
from wattlaw.measure.limits.state_folder import VARIABLE, StateFolder

FAKE_BIN = Path(__file__).parent / "fake_bin"
#: The PATH with its commands, and this Python.
FAKE_PATH = os.pathsep.join([str(FAKE_BIN), str(Path(sys.executable).parent), os.environ["PATH"]])
SET = "nvmlDeviceSetPowerManagementLimit"
#: The hardware's default and maximum are 250 W; somebody has set 217.5 W.
HARDWARE = {"limit_max_mw": 250_000, "limit_default_mw": 250_000, "limit_mw": 217_500}
CAP = Limits(power_limit_w=150)
#: Limits the boards of its arguments, says so, and does nothing else.
OWNER = """
import sys, time
from wattlaw.measure.limits.requests import Limits
from wattlaw.measure.limits.guard import acquire
held = acquire(sys.argv[2:])
if held is None:
    sys.exit("somebody else has one of them")
held.apply(Limits(power_limit_w=float(sys.argv[1])))
print("limited", flush=True)
time.sleep(60)
"""


def restore_stale_or_raise(folder: StateFolder, *, include_kept: bool = False) -> list[StaleLimit]:
    """Restore the limits that ended processes have left; raise an error for damaged files."""
    stale, damaged = restore_stale(folder, include_kept=include_kept)
    if damaged:
        raise BadInput("; ".join(damaged))
    return stale


class Place:
    """Boards with a folder of saved limits: those of this process and all that it starts.

    The boards' limit is an odd one, and neither their default nor their maximum.
    """

    def __init__(
        self, path: Path, boards: FakeGpus | AmdMachine, patch: pytest.MonkeyPatch
    ) -> None:
        self.boards, self.folder = boards, StateFolder(path / "limits")
        setenv(patch, {**boards.environment(), VARIABLE: str(self.folder.path)})

    @property
    def devices(self) -> list[str]:
        return self.boards.ids

    @property
    def limits_w(self) -> list[float]:
        return [board.limit_mw / 1000 for board in self.boards]

    @property
    def files(self) -> list[str]:
        found = self.folder.path.iterdir() if self.folder.path.exists() else []
        return [path.name for path in found if path.suffix != ".lock"]

    @property
    def watchdogs(self) -> list[psutil.Process]:
        module = "wattlaw.measure.limits.watchdog"
        return living(lambda line: str(self.folder.path) in line and module in line)

    def is_clean(self) -> bool:
        held = any(self.folder.lock_owner(device) for device in self.devices)
        return not (held or self.files or self.watchdogs)

    def wait_until_clean(self) -> None:
        wait_for(self.is_clean, "everything to be given back", 20)

    @contextmanager
    def owner(
        self, watts: float, devices: Sequence[str] = (), *, is_waited_for: bool = True
    ) -> Iterator["Child"]:
        """Start a process that limits boards, by default all; return when they are limited."""
        line = [sys.executable, "-c", OWNER, str(watts), *(devices or self.devices)]
        with child(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            if is_waited_for:
                said = process.stdout.readline()
                assert said == "limited\n", process.stderr.read()
            yield process

    @contextmanager
    def measured(self, *line: object, **options: object) -> Iterator["Child"]:
        store = self.folder.path.parent / "store"
        start = [sys.executable, "-m", "wattlaw", "measure", "-o", str(store)]
        with child([*start, *map(str, line)], stderr=subprocess.PIPE, **options) as process:
            yield process


def places(
    path: Path, fake_gpus: Callable[..., FakeGpus], patch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Place]]:
    """Give a function that makes boards with a folder of limits; in the end no watchdog remains."""
    made: list[Place] = []

    def make(count: int = 1, **changes: object) -> Place:
        made.append(Place(path, fake_gpus(count, **(HARDWARE | changes)), patch))
        return made[-1]

    yield make
    for place in made:
        place.boards.clear_faults()
        wait_for(lambda place=place: not place.watchdogs, "the watchdogs to end", 20)


Child = subprocess.Popen[str]


@contextmanager
def child(line: Sequence[str], **options: object) -> Iterator[Child]:
    with heard():
        process = subprocess.Popen(line, text=True, start_new_session=True, **options)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def kill(process: Child) -> None:
    process.kill()
    process.wait()


def kill_group(process: Child) -> None:
    """Kill all that a terminal would."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def kill_tree(process: Child) -> None:
    for member in [*psutil.Process(process.pid).children(recursive=True), process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    process.wait()


def child_named(process: Child, name: str) -> psutil.Process:
    def found() -> psutil.Process | None:
        for one in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if one.cmdline()[:1] == [name]:
                    return one
        return None

    return wait_for(found, f"{name} to be started", 20)


def stays(condition: Callable[[], object], seconds: float) -> bool:
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        if not condition():
            return False
        time.sleep(0.02)
    return True
