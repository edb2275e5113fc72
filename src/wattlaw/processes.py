"""Processes that must not outlive the one that started them."""

import contextlib
import ctypes
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

_PR_SET_PDEATHSIG = 1
_TELLS_CHILDREN = Path("/proc/thread-self/children").exists()


def end_with_parent(parent_pid: int) -> None:
    """Arrange for SIGKILL to this process as soon as its parent is gone.

    On Linux the kernel does it (``prctl(PR_SET_PDEATHSIG)``, see prctl(2)); elsewhere a thread
    looks once a second. A parent that died before the call is noticed too.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_watch_parent, args=(parent_pid,), daemon=True).start()
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)


def _watch_parent(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Look for no garbage while a program gets ready, and never among what it has then.

    What an import makes stays. To look through it again and again takes a part of the time of a
    rank's imports, of each full collection during training, and of the end.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def cores() -> int:
    """Return how many processor cores this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def descendants(root_pid: int) -> list[int]:
    """Return the pids of a process and its living descendants; empty when it is gone.

    Linux tells the children of each thread (proc(5), ``children``), which costs as much as the
    tree is big; psutil goes through all processes of the machine.
    """
    if not _TELLS_CHILDREN:
        return [process.pid for process in process_tree(root_pid)]
    found, unseen = [], [root_pid]
    while unseen:
        pid = unseen.pop()
        try:
            threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - quicker
        except OSError:
            continue
        found.append(pid)
        for thread in threads:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                path = f"/proc/{pid}/task/{thread}/children"
                with open(path, "rb") as file:  # noqa: PTH123 - quicker
                    unseen += map(int, file.read().split())
    return found


def process_tree(root_pid: int) -> list[psutil.Process]:
    """Return a process and all its living descendants; empty when it is gone."""
    try:
        root = psutil.Process(root_pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def terminate(processes: Iterable[psutil.Process], grace_s: float) -> None:
    """Ask processes to end (SIGTERM), and after ``grace_s`` seconds make them (SIGKILL).

    psutil identifies a process by pid and creation time, so a reused pid is never hit.
    """
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
