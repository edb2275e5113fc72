"""A folder in which the soak works, and the processes that it has started there."""

import contextlib
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import psutil

from fake_nvml import VARIABLE as BOARDS_VARIABLE
from fake_nvml import FakeGpus
from fake_nvml import library as build_library

REPOSITORY = Path(__file__).parents[2]
#: In the environment of every process that a part starts, so that it is known whose it is.
MARK = "WATTLAW_SOAK_MARK"
_OURS = ("WATTLAW_", "SLURM_", "CUDA_", "HIP_", "ROC", "NVIDIA_", "PYTHON", "LC_", "XDG_")
_TRIES = 10
BEFORE_MW = 287_500


driver = cache(build_library)


class Sandbox:
    """Folders for a part of the soak, and an environment that leads nowhere else.

    The boards are fake and refuse every change (``root=0``) unless a part makes others.
    """

    def __init__(self, root: Path) -> None:
        driver()
        self.root = root
        self.mark = f"{root.parent.name}/{root.name}"
        self.inputs, self.work, self.tmp = root / "inputs", root / "work", root / "tmp"
        self.home, self.limits = root / "home", root / "limits"
        self._folders = (self.inputs, self.work, self.tmp, self.home, self.limits)
        for folder in self._folders:
            folder.mkdir(parents=True, exist_ok=True)
        self.boards_path = root / "boards"

    def make_boards(self, **changes: object) -> FakeGpus:
        given = {"root": 0, "limit_mw": BEFORE_MW} | changes
        return FakeGpus.create(self.boards_path, 2, **given)

    def environment(self, *, path: str | None = None) -> dict[str, str]:
        kept = {n: v for n, v in os.environ.items() if not n.startswith(_OURS) and n != "COLUMNS"}
        search = [str(driver()), kept.get("LD_LIBRARY_PATH")]
        return kept | {
            MARK: self.mark,
            "LD_LIBRARY_PATH": os.pathsep.join(filter(None, search)),
            BOARDS_VARIABLE: str(self.boards_path),
            "WATTLAW_LIMITS_DIR": str(self.limits),
            "WATTLAW_LOCKS": str(self.root),
            "WATTLAW_SLURM_REPORTS": str(self.root / "reports"),
            "TMPDIR": str(self.tmp),
            "HOME": str(self.home),
            "XDG_STATE_HOME": str(self.home / "state"),
            "XDG_CACHE_HOME": str(self.home / "cache"),
            "XDG_CONFIG_HOME": str(self.home / "config"),
            "PATH": path or f"/usr/bin{os.pathsep}/bin",
            "PYTHONPATH": str(REPOSITORY / "src"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "100",
            "LC_ALL": "C.UTF-8",
        }

    def processes(self) -> list[psutil.Process]:
        """Return the living processes that were started in this sandbox."""
        return marked(self.mark)

    def end_all(self) -> None:
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()

    def wait_until_empty(self, seconds: float) -> list[str]:
        """Wait until no process is left; return the command lines of those that stay."""
        end_s = time.monotonic() + seconds
        while (found := self.processes()) and time.monotonic() < end_s:
            time.sleep(0.05)
        lines = []
        for process in found:
            with contextlib.suppress(psutil.Error):
                lines.append(f"{process.pid} " + " ".join(process.cmdline())[:300])
        return lines

    def empty(self) -> None:
        """Remove what an input has left, and make the folders anew."""
        for folder in self._folders:
            for entry in os.scandir(folder):
                if entry.is_dir(follow_symlinks=False):
                    remove_tree(Path(entry.path))
                else:
                    Path(entry.path).unlink()


def remove_tree(path: Path) -> None:
    """Remove a folder, also one without permissions."""
    for _ in range(_TRIES):  # a process that is just being killed may still write
        with contextlib.suppress(OSError):
            path.chmod(0o700)
        shutil.rmtree(path, ignore_errors=True)
        if not path.exists():
            return
        time.sleep(0.2)


#: Where the sandboxes of this soak lie.
_BASES: dict[str, Path] = {}


@contextlib.contextmanager
def bases() -> Iterator[Path]:
    """Make the folders of this soak; in the end its processes are ended and all is removed."""
    name = f"wattlaw-soak-{os.getpid()}-{secrets.token_hex(4)}"
    shared = "/dev/shm"  # noqa: S108 - only folders of random names are made there
    memory = shared if os.access(shared, os.W_OK) else None  # no disk, where the machine has one
    for kind, parent in (("disk", None), ("memory", memory)):
        _BASES[kind] = Path(parent or tempfile.gettempdir()) / name
        _BASES[kind].mkdir(mode=0o755, exist_ok=True)
    try:
        yield _BASES["memory"]
    finally:
        for process in marked(f"{name}/", is_whole=False):
            with contextlib.suppress(psutil.Error):
                process.kill()
        for folder in _BASES.values():
            remove_tree(folder)


def marked(mark: str, *, is_whole: bool = True) -> list[psutil.Process]:
    """Return the living processes with a mark, or its begin, in their environment; not this one."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            words = Path(entry.path, "environ").read_bytes().split(b"\0")
            if wanted in words or (not is_whole and any(w.startswith(wanted) for w in words)):
                process = psutil.Process(int(entry.name))
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        except (OSError, psutil.Error):
            continue
    return found


@contextlib.contextmanager
def sandbox(name: str, *, in_memory: bool = False) -> Iterator[Sandbox]:
    """Give a sandbox; at the end its processes are ended and its folder is removed."""
    root = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=_BASES["memory" if in_memory else "disk"]))
    root.chmod(0o755)
    own = Sandbox(root)
    try:
        yield own
    finally:
        own.end_all()
        remove_tree(root)


def command_line(*words: object) -> list[str]:
    return [sys.executable, "-m", "wattlaw", *map(str, words)]


@contextlib.contextmanager
def changed_environment(environment: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def default_signals() -> None:
    """Let a process that is forked or started hear what a terminal sends."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
