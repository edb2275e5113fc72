"""The launcher ``simulated``: a pool of processes simulates the runs."""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, resource_tracker
from pathlib import Path
from types import ModuleType
from typing import Self

from wattlaw.common import processes
from wattlaw.common.errors import NotAvailable, one_line
from wattlaw.measure.limits.requests import check_range
from wattlaw.running.boards import memory_warnings, too_large_reason
from wattlaw.running.launcher import Allocation, Ended, Launcher
from wattlaw.running.node_setup import requested_limits
from wattlaw.store.record import RunRecord
from wattlaw.store.run_folder import RunFolder
from wattlaw.study.launching import Launch
from wattlaw.study.model import RunSpec, Study
from wattlaw_simulator.launching.simulated_machine import Machine

#: Active runs per process: all processes are busy, and a Ctrl-C interrupts few runs.
_IN_FLIGHT = 6
#: The terminal sends Ctrl-C to all processes; the pool's processes leave it to this one.
_HANDLED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class SimulatedLauncher(Launcher):
    """Simulates runs, without slots of this machine, in as many processes as cores."""

    is_durable = False  # simulating again is quicker than waiting for the disk

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.most_active = _IN_FLIGHT * processes.cores()
        self._pool: ProcessPoolExecutor | None = None
        self._unsupported: dict[str, str | None] = {}

    @classmethod
    def resolve(cls, study: Study) -> Study:
        machine = Machine.from_launch(study.launch)
        resolved = {"hardware": machine.label, "gpus_per_node": machine.gpus_per_node}
        launch = study.launch.model_copy(update=resolved)
        return study.model_copy(update={"launch": launch})

    @classmethod
    def open(cls, launch: Launch, store: Path) -> Self:  # noqa: ARG003 - every store works
        return cls(Machine.from_launch(launch))

    def warnings(self, specs: Sequence[RunSpec]) -> Iterator[str]:
        return memory_warnings(specs, [self._machine.board])

    def unsupported_reason(self, spec: RunSpec) -> str | None:
        kind = f"{spec.workload.model_dump_json()} {spec.setting.precision}"
        if kind not in self._unsupported:
            self._unsupported[kind] = self._machine.unsupported_reason(spec)
        if self._unsupported[kind] is not None:
            return self._unsupported[kind]
        if (reason := self._machine.nodes_reason(spec)) is not None:
            return reason
        try:
            check_range(self._machine.board_states(spec)[0], requested_limits(spec.setting))
        except NotAvailable as error:
            return str(error)
        return too_large_reason(spec, [self._machine.board])

    def start(
        self,
        record: RunRecord,
        folder: RunFolder,
        allocation: Allocation,  # noqa: ARG002 - a process of the pool is all
    ) -> "SimulatedAttempt":
        resource_tracker.ensure_running()  # it unblocks signals when it starts
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED_SIGNALS)  # children inherit it
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")  # children import it: not a user's script
        try:
            return SimulatedAttempt(self._submit(record, folder))
        finally:
            sys.modules["__main__"] = main
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def close(self) -> None:
        """End the processes and wait for them: at the interpreter's end, the pool's thread and the
        interpreter may both close a pipe, and fail (Python 3.11)."""
        if self._pool is not None and self._pool._broken:
            _end_all(self._pool)
        elif self._pool is not None:
            self._pool.shutdown()
        self._pool = None

    def _submit(self, record: RunRecord, folder: RunFolder) -> "Future[Ended]":
        task = (record, folder.path.resolve())
        if self._pool is not None:
            try:
                return self._pool.submit(_simulate, *task)
            except BrokenProcessPool:  # a process was killed
                _end_all(self._pool)
        self._pool = ProcessPoolExecutor(
            *(processes.cores(), get_context("spawn"), _initialize, (os.getpid(), self._machine))
        )
        return self._pool.submit(_simulate, *task)


class SimulatedAttempt:
    def __init__(self, future: "Future[Ended]") -> None:
        self._future = future

    def poll(self) -> Ended | None:
        if not self._future.done():
            return None
        try:
            return self._future.result()
        except CancelledError:
            return Ended("stopped")
        except BrokenProcessPool:
            return Ended("a simulating process was killed")
        except Exception as error:
            return Ended(f"could not be simulated: {one_line(error)}")

    def stop(self) -> None:
        """Remove a queued run from the pool, or wait until an active run has ended."""
        if not self._future.cancel():
            wait([self._future])


def _end_all(pool: ProcessPoolExecutor) -> None:
    """End a broken pool, whose processes ignore the signal by which it would end them."""
    for process in list((pool._processes or {}).values()):
        process.kill()
    pool.shutdown()


_machine: list[Machine] = []  # of a process of the pool


def _initialize(parent_pid: int, machine: Machine) -> None:
    import pyarrow as pa

    processes.end_with_parent(parent_pid)
    for number in _HANDLED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    pa.set_cpu_count(1)
    _machine[:] = [machine]


def _simulate(record: RunRecord, path: Path) -> Ended:
    from wattlaw_simulator.launching.simulated_run import simulate

    return simulate(_machine[0], record, path)
