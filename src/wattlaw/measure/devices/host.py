"""Processor and memory use of the processes of a run, on any machine and without privileges.

It measures no energy. With ``assume_cpu_w`` it estimates energy as busy core-seconds times that
number of watts, and marks it ``estimated``.
"""

import contextlib
import os
import time
from typing import Self

import psutil

from wattlaw.common import processes
from wattlaw.common.errors import NotAvailable
from wattlaw.measure.devices.meter import Device, Meter, Sample, Target

#: The period of the search for new processes of the run. It grows, because on a big machine the
#: search costs more than all the rest. An estimate of energy keeps the short period.
_SEARCH_PERIOD_S = 1.0
_MAX_SEARCH_PERIOD_S = 30.0
#: The kernel counts processor time in hundredths of a second. Utilisation alone needs less.
_MIN_PERIOD_S, _UTILISATION_PERIOD_S = 0.1, 1.0

_TICKS, _PAGE_BYTES = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


class HostMeter(Meter):
    """Measures a process and its descendants, except this process. Busy time is the sum over living
    processes of their own time and that of the children they have waited for (proc(5), ``utime
    stime cutime cstime``), so that it includes processes that have ended. Memory is the sum of
    resident sets; shared pages count in each."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.period_s = max(
            target.period_s, _MIN_PERIOD_S if target.assume_cpu_w else _UTILISATION_PERIOD_S
        )
        #: The open ``stat`` file of each process. That of a process that has ended cannot be read,
        #: even if its pid is used again.
        self._tree: dict[int, int] = {}
        self._search_period_s = _SEARCH_PERIOD_S
        self._searched_s = -_MAX_SEARCH_PERIOD_S
        self._busy_s = 0.0
        self._last: tuple[int, float] | None = None
        self._first_busy_s: float | None = None

    @classmethod
    def open(cls, target: Target) -> Self:
        if not psutil.pid_exists(target.root_pid):
            raise NotAvailable(f"host: process {target.root_pid} does not exist")
        return cls(target)

    def devices(self) -> list[Device]:
        is_estimate = self._target.assume_cpu_w is not None
        name = "processors, the run's processes only"
        return [Device("host", "cpu", name, has_energy=is_estimate)]

    def read(self, *, last: bool = False) -> list[Sample]:  # noqa: ARG002 - nothing is buffered
        t_ns = time.time_ns()
        use = self._sum()
        if use is None:
            return []
        busy_s, resident = use
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

    def close(self) -> None:
        while self._tree:
            os.close(self._tree.popitem()[1])

    def _sum(self) -> tuple[float, int] | None:
        if time.monotonic() - self._searched_s >= self._search_period_s:
            self._find_processes()
        busy_s, resident, alive = 0.0, 0, False
        for pid, handle in list(self._tree.items()):
            try:
                # Fields as proc(5) numbers them, from 3 on; a name may hold spaces and brackets.
                fields = os.pread(handle, 4096, 0).rpartition(b")")[2].split()
                own_busy, own_pages = sum(map(int, fields[11:15])), int(fields[21])
            except (OSError, ValueError, IndexError):  # it has ended
                os.close(self._tree.pop(pid))
                self._search_period_s = _SEARCH_PERIOD_S  # processes come and go
                continue
            busy_s += own_busy / _TICKS
            resident += own_pages * _PAGE_BYTES
            alive = alive or fields[0] != b"Z"  # not a zombie
        return (busy_s, resident) if alive else None

    def _find_processes(self) -> None:
        pids = [pid for pid in processes.descendants(self._target.root_pid) if pid != os.getpid()]
        is_new = not self._tree.keys() >= set(pids)
        for pid in set(pids) - self._tree.keys():
            with contextlib.suppress(OSError):
                self._tree[pid] = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
        is_settled = not is_new and self._target.assume_cpu_w is None
        self._search_period_s = (
            min(_MAX_SEARCH_PERIOD_S, 2 * self._search_period_s) if is_settled else _SEARCH_PERIOD_S
        )
        self._searched_s = time.monotonic()
