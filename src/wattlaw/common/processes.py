"""Process trees: their members, their end, and the end of a child with its parent."""

import contextlib
import ctypes
import gc
import math
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

import psutil

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LISTS_CHILDREN = Path("/proc/thread-self/children").exists()
_CGROUPS, _OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def end_with_parent(parent_pid: int) -> None:
    """Let the kernel kill this process when its parent ends, or has ended already (prctl(2))."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)


def adopt_orphans(adopts: bool) -> None:
    """Make this process, or init, the parent of descendants whose parents end (prctl(2))."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(adopts))


@contextlib.contextmanager
def handling(
    numbers: Iterable[int], handler: Callable[[int, FrameType | None], object]
) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the garbage collector while a program starts, then exempt what exists from it.

    Objects of imports are permanent. Scanning them would slow down a rank's imports, each full
    collection during training, and the exit.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def run_captured(
    line: Sequence[str], timeout_s: float, env: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        line, capture_output=True, stdin=subprocess.DEVNULL, encoding="utf-8", errors="replace",
        timeout=timeout_s, check=False, env=env,
    )  # fmt: skip


def cores() -> int:
    """Return the number of processor cores that this process may use.

    It is the least of its affinity, the CPU quotas of its control groups, such as the limit of a
    container, and what Slurm has assigned, which not every site enforces by affinity.
    """
    return max(1, int(min(len(os.sched_getaffinity(0)), *_slurm_cores(), *_quotas(), math.inf)))


def _slurm_cores() -> list[int]:
    """Return the cores of this task of a job step or, outside of one, of the job on this node."""
    names = ["SLURM_CPUS_ON_NODE", "SLURM_CPUS_PER_TASK"]
    # The shells of sbatch and salloc are no tasks; Slurm numbers their steps from 2^32 down.
    if re.fullmatch("[0-9]{1,9}", os.environ.get("SLURM_STEP_ID", "")):
        names.reverse()
    values = (os.environ.get(name, "") for name in names)
    return [int(value) for value in values if re.fullmatch("[1-9][0-9]{0,6}", value)][:1]


def _quotas() -> Iterator[float]:
    """Yield the CPU quotas of this process's control groups, in cores (cgroups(7), version 2).

    A container may see the path of its host, although its own group is the root that it sees.
    """
    with contextlib.suppress(OSError, UnicodeDecodeError):
        group = _CGROUPS / _OWN_CGROUPS.read_text(encoding="utf-8").rpartition("0::/")[2].strip()
        for folder in (group, *group.parents):
            if folder.is_relative_to(_CGROUPS):
                with contextlib.suppress(OSError, ValueError):  # no quota: "max"
                    quota_us, period_us = map(int, (folder / "cpu.max").read_text("ascii").split())
                    yield quota_us / period_us


def children(pid: int) -> list[int] | None:
    """Return the pids of a process's children, zombies included; None when it is gone.

    Linux lists the children of each thread (proc(5), ``children``), so that the cost is that of the
    tree; psutil scans all processes of the machine.
    """
    if not _LISTS_CHILDREN:
        with contextlib.suppress(psutil.NoSuchProcess):
            return [child.pid for child in psutil.Process(pid).children()]
        return None
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - quicker
    except OSError:
        return None
    pids: list[int] = []
    for thread in threads:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            path = f"/proc/{pid}/task/{thread}/children"
            with open(path, "rb") as file:  # noqa: PTH123 - quicker
                pids += map(int, file.read().split())
    return pids


def descendants(root_pid: int) -> list[int]:
    """Return the pids of a process and its living descendants; empty when it is gone."""
    if not _LISTS_CHILDREN:
        return [process.pid for process in process_tree(root_pid)]
    pids, unseen = [], [root_pid]
    while unseen:
        pid = unseen.pop()
        own = children(pid)
        if own is not None:
            pids.append(pid)
            unseen += own
    return pids


def process_tree(root_pid: int) -> list[psutil.Process]:
    try:
        root = psutil.Process(root_pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def terminate(processes: Iterable[psutil.Process], grace_s: float) -> None:
    """Send SIGTERM, and after ``grace_s`` seconds SIGKILL; psutil never hits a reused pid."""
    alive = list(processes)
    for how in ("terminate", "kill"):
        for process in alive:
            try:
                getattr(process, how)()
            except psutil.NoSuchProcess:
                continue
        _, alive = psutil.wait_procs(alive, timeout=grace_s)
        if not alive:
            return
