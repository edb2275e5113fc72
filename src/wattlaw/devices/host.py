"""Processor and memory use of a run's own processes: on every machine, without any privilege.

It measures no energy. With ``assume_cpu_w`` it estimates energy as busy core-seconds times that
many watts, and says ``estimated``.
"""

import os
import sys
import time
from pathlib import Path
from typing import NamedTuple, Self

import psutil

from wattlaw import processes
from wattlaw.devices.meter import Device, Sample, Target
from wattlaw.errors import NotAvailable

#: How often new processes of the run are looked for: soon at first, then more seldom, because
#: on a big machine looking costs more than all the rest. An estimate of energy needs it sooner.
_SEARCH_S = 1.0
_MAX_LOOK_S = 30.0
#: The kernel counts processor time in hundredths of a second; use, without energy, needs less.
_FASTEST_S = 0.1
_USE_S = 1.0


class HostMeter:
    """Meters a process and its descendants, less the process that does the metering.

    The busy time of the tree is the sum over its living processes of their own time and of that
    of the children they have waited for (proc(5), ``utime stime cutime cstime``), so that
    processes which end are not forgotten. Memory is the sum of resident sets; pages shared
    between processes are counted in each.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self.period_s = max(target.period_s, _FASTEST_S if target.assume_cpu_w else _USE_S)
        self._tree: dict[int, _Process] = {}
        self._look_s = _SEARCH_S
        self._looked_s = -_MAX_LOOK_S
        self._busy_s = 0.0
        self._last: tuple[int, float] | None = None
        self._first_busy_s: float | None = None

    @classmethod
    def open(cls, target: Target) -> Self:
        """Get ready; raises ``NotAvailable`` when the root process is not there."""
        if not psutil.pid_exists(target.root_pid):
            raise NotAvailable(f"host: process {target.root_pid} is not there")
        return cls(target)

    def devices(self) -> list[Device]:
        """Return the one device: the host's processors as this run uses them."""
        return [Device("host", "cpu", "processors, the run's processes only")]

    def read(self, *, last: bool = False) -> list[Sample]:  # noqa: ARG002 - nothing is held back
        """Return busy cores since the sample before and resident memory now."""
        t_ns = time.time_ns()
        found = self._sum()
        if found is None:
            return []
        busy_s, resident = found
        self._busy_s = max(self._busy_s, busy_s)
        if self._first_busy_s is None:
            self._first_busy_s = self._busy_s
        cores = None
        if self._last is not None and t_ns > self._last[0]:
            cores = (self._busy_s - self._last[1]) / ((t_ns - self._last[0]) * 1e-9)
        self._last = (t_ns, self._busy_s)
        watts = self._target.assume_cpu_w
        return [
            Sample(
                device="host",
                kind="cpu",
                t_ns=t_ns,
                cpu_cores=cores,
                mem_used_bytes=resident,
                power_w=None if watts is None or cores is None else cores * watts,
                energy_j=None if watts is None else (self._busy_s - self._first_busy_s) * watts,
                power_source=None if watts is None else "estimated",
            )
        ]

    def problems(self) -> list[str]:
        """Nothing of the host is ever given up."""
        return []

    def close(self) -> None:
        """Forget the processes."""
        for process in self._tree.values():
            process.close()
        self._tree = {}

    def _sum(self) -> tuple[float, int] | None:
        """Return (busy seconds, resident bytes) of the tree, None when nothing of it is left."""
        if time.monotonic() - self._looked_s >= self._look_s:
            self._look()
        busy_s, resident, alive = 0.0, 0, False
        for pid, process in list(self._tree.items()):
            use = process.use()
            if use is None:
                self._tree.pop(pid).close()
                self._look_s = _SEARCH_S  # things are moving
                continue
            busy_s += use.busy_s
            resident += use.resident_bytes
            alive = alive or use.is_alive
        return (busy_s, resident) if alive else None

    def _look(self) -> None:
        """Find the processes of the tree, keeping those that are known."""
        mine = [pid for pid in processes.descendants(self._target.root_pid) if pid != os.getpid()]
        is_new = not self._tree.keys() >= set(mine)
        for pid in mine:
            if pid not in self._tree and (process := _Process.of(pid)) is not None:
                self._tree[pid] = process
        settled = not is_new and self._target.assume_cpu_w is None
        self._look_s = min(_MAX_LOOK_S, 2 * self._look_s) if settled else _SEARCH_S
        self._looked_s = time.monotonic()


class _Use(NamedTuple):
    busy_s: float
    resident_bytes: int
    is_alive: bool  # not a zombie


class _Process:
    """One process. On Linux its ``stat`` file stays open: one read gives all, and never another's.

    A file of a process that is gone cannot be read, also when its number is in use again.
    """

    def __init__(self, handle: int | psutil.Process) -> None:
        self._handle = handle

    @classmethod
    def of(cls, pid: int) -> "_Process | None":
        """Return a process that can be read, else None."""
        try:
            if sys.platform == "linux":
                return cls(os.open(Path("/proc", str(pid), "stat"), os.O_RDONLY))
            return cls(psutil.Process(pid))
        except (OSError, psutil.Error):
            return None

    def use(self) -> _Use | None:
        """Return what it has used, None when it is gone."""
        try:
            if isinstance(self._handle, int):
                # Fields as proc(5) numbers them, from 3 on; a name may hold spaces and brackets.
                fields = os.pread(self._handle, 4096, 0).rpartition(b")")[2].split()
                busy = sum(map(int, fields[11:15]))
                return _Use(busy / _TICKS, int(fields[21]) * _PAGE_BYTES, fields[0] != b"Z")
            with self._handle.oneshot():
                return _Use(
                    sum(self._handle.cpu_times()[:4]),
                    self._handle.memory_info().rss,
                    self._handle.status() != psutil.STATUS_ZOMBIE,
                )
        except (OSError, ValueError, IndexError, psutil.Error):
            return None

    def close(self) -> None:
        """Let the file go."""
        if isinstance(self._handle, int):
            os.close(self._handle)


_TICKS, _PAGE_BYTES = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
