"""The launcher ``simulated``: hands runs to a few processes that simulate them."""

import os
import signal
import sys
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, resource_tracker
from pathlib import Path
from types import ModuleType
from typing import Self

from wattlaw import processes
from wattlaw.devices.simulated_gpus import SimulatedGpus
from wattlaw.errors import NotAvailable, one_line
from wattlaw.launch.launcher import AttachedLauncher, Ended
from wattlaw.launch.limits import requested_limits
from wattlaw.launch.simulated.machine import Machine
from wattlaw.limits.requests import check_range
from wattlaw.store.record import RunRecord
from wattlaw.store.run_folder import RunFolder
from wattlaw.study.launching import Launch
from wattlaw.study.model import RunSpec

#: Runs under way at once, for each process: enough that none waits for the next one, few enough
#: that a Ctrl-C interrupts few.
_IN_FLIGHT = 6
#: A Ctrl-C goes to all processes of a terminal; this one says what becomes of the others.
_OURS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class SimulatedLauncher(AttachedLauncher):
    """Simulates each run within one of as many processes as there are cores.

    Runs take no place on this machine: nothing that is measured could be disturbed but by load.
    """

    is_durable = False  # it is quicker to simulate again than to wait for the disk

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._claims: set[Allocation] = set()
        self._most = _IN_FLIGHT * processes.cores()
        self._pool: ProcessPoolExecutor | None = None
        self._refusals: dict[str, str | None] = {}

    @classmethod
    def resolve(cls, launch: Launch) -> Launch:
        """Return the launch with the hardware's label and the GPUs of a node.

        Raises
        ------
        BadInput
            No hardware is named, what is named cannot be read, or its nodes have fewer GPUs.
        """
        machine = Machine.from_launch(launch)
        told = {"hardware": machine.label, "gpus_per_node": machine.gpus_per_node}
        return launch.model_copy(update=told)

    @classmethod
    def open(cls, launch: Launch, store: Path) -> Self:  # noqa: ARG003 - any store is as good
        """Read the hardware; raises ``BadInput`` as ``prepared`` does."""
        return cls(Machine.from_launch(launch))

    def unsupported_reason(self, spec: RunSpec) -> str | None:
        """Return why a run can never be simulated, or None."""
        kind = f"{spec.workload.model_dump_json()} {spec.setting.precision}"
        if kind not in self._refusals:
            self._refusals[kind] = self._machine.unsupported_reason(spec)
        return self._refusals[kind] or self._limits_refused(spec)

    def _limits_refused(self, spec: RunSpec) -> str | None:
        (board,) = self._machine.reported_boards(1)
        state = SimulatedGpus(self._machine.cluster.gpu, [board]).read(board)
        try:
            check_range(state, requested_limits(spec.setting))
        except NotAvailable as error:
            return str(error)
        return None

    def allocate(self, spec: RunSpec) -> "Allocation | None":  # noqa: ARG002 - each takes the same room
        """Take one of a few places in the queue."""
        return Allocation(self._claims) if len(self._claims) < self._most else None

    def start(
        self, record: RunRecord, folder: RunFolder, allocation: "Allocation"
    ) -> "SimulatedAttempt":
        """Hand a run to the processes; they are started when they are needed."""
        resource_tracker.ensure_running()  # it unblocks signals when it starts
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _OURS)  # children inherit it
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")  # children import it: not a user's script
        try:
            return SimulatedAttempt(self._submit(record, folder), allocation)
        finally:
            sys.modules["__main__"] = main
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def close(self) -> None:
        """End the processes and wait for it: a pool left to the interpreter's end may fail.

        Its thread and the interpreter then close one pipe at the same time (Python 3.11).
        """
        if self._pool is not None and self._pool._broken:
            _end_all(self._pool)
        elif self._pool is not None:
            self._pool.shutdown()
        self._pool = None

    def _submit(self, record: RunRecord, folder: RunFolder) -> "Future[Ended]":
        task = (record, folder.path.resolve())
        if self._pool is not None:
            try:
                return self._pool.submit(_simulated, *task)
            except BrokenProcessPool:  # a process was killed; its runs have failed
                _end_all(self._pool)
        self._pool = ProcessPoolExecutor(
            processes.cores(),
            get_context("spawn"),
            initializer=_begin,
            initargs=(os.getpid(), self._machine),
        )
        return self._pool.submit(_simulated, *task)


class Allocation:
    """A place in the queue of a launcher."""

    def __init__(self, taken: "set[Allocation]") -> None:
        self._taken = taken
        taken.add(self)

    def release(self) -> None:
        """Give it back; more than once is harmless."""
        self._taken.discard(self)


class SimulatedAttempt:
    """A run in the queue, under way in a process, or ended."""

    def __init__(self, future: "Future[Ended]", allocation: Allocation) -> None:
        self._future, self._claim = future, allocation

    def poll(self) -> Ended | None:
        """Return how it ended, or None."""
        if not self._future.done():
            return None
        self._claim.release()
        try:
            return self._future.result()
        except CancelledError:
            return Ended("stopped")
        except BrokenProcessPool:
            return Ended("a process that simulates was ended from outside")
        except Exception as error:
            return Ended(f"could not be simulated: {one_line(error)}")

    def stop(self) -> None:
        """Take it out of the queue; one that is under way takes a moment more."""
        if not self._future.cancel():
            wait([self._future])
        self._claim.release()


def _end_all(pool: ProcessPoolExecutor) -> None:
    """End a broken pool. It asks its other processes to end by a signal that they do not heed."""
    for one in list((pool._processes or {}).values()):
        one.kill()
    pool.shutdown()


_machine: list[Machine] = []  # of a process that simulates


def _begin(parent_pid: int, machine: Machine) -> None:
    """Get a process ready: it ends with its parent, and simulates on one core."""
    import pyarrow as pa

    processes.end_with_parent(parent_pid)
    for one in _OURS:
        signal.signal(one, signal.SIG_IGN)
    pa.set_cpu_count(1)
    _machine[:] = [machine]


def _simulated(record: RunRecord, path: Path) -> Ended:
    from wattlaw.launch.simulated.run import simulate

    return simulate(_machine[0], record, path)
