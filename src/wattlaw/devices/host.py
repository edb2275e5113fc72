"""Processor and memory use of a run's own processes: on every machine, without any privilege.

It measures no energy. With ``assume_cpu_w`` it estimates energy as busy core-seconds times that
many watts, and says ``estimated``.
"""

import time
from typing import Self

import psutil

from wattlaw import processes
from wattlaw.devices.meter import Device, Sample, Target
from wattlaw.errors import NotAvailable

#: How often new processes of the run are looked for, in seconds.
_LOOK_S = 1.0


class HostMeter:
    """Meters a process and its descendants, less the process that does the metering.

    The busy time of the tree is the sum over its living processes of their own time and of that
    of the children they have waited for (proc(5), ``utime stime cutime cstime``), so that
    processes which end are not forgotten. Memory is the sum of resident sets; pages shared
    between processes are counted in each.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._tree: list[psutil.Process] = []
        self._looked_s = -_LOOK_S
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

    def read(self) -> list[Sample]:
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

    def close(self) -> None:
        """Forget the processes."""
        self._tree = []

    def _sum(self) -> tuple[float, int] | None:
        """Return (busy seconds, resident bytes) of the tree, None when nothing of it is left."""
        if time.monotonic() - self._looked_s >= _LOOK_S:
            me = psutil.Process()
            self._tree = [p for p in processes.tree(self._target.root_pid) if p != me]
            self._looked_s = time.monotonic()
        busy_s, resident, alive = 0.0, 0, False
        for process in self._tree:
            try:
                with process.oneshot():
                    busy_s += sum(process.cpu_times()[:4])
                    resident += process.memory_info().rss
                    alive = alive or process.status() != psutil.STATUS_ZOMBIE
            except psutil.Error:
                continue
        return (busy_s, resident) if alive else None
