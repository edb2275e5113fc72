"""The launcher ``local``: runs are child processes of this process.

A run that has a slot of the machine uses its GPU, or its cores, exclusively. A slot is a lock, so
that measurements of different users and campaigns do not disturb each other. The kernel releases
the slots of a process that dies.
"""

import importlib.util
import math
import os
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Self

from wattlaw.common import machine_lock, processes
from wattlaw.common.errors import NotAvailable
from wattlaw.common.files import naming, open_regular
from wattlaw.common.formatting import plural
from wattlaw.common.isolation import isolated_environment, isolated_python
from wattlaw.measure.devices.inventory import accelerators, gpu_environment, visible_devices
from wattlaw.measure.devices.limiter import LimitState
from wattlaw.measure.limits.guard import LimitLease, acquire, lock_conflict
from wattlaw.running.boards import Board, memory_warnings, named_board, too_large_reason
from wattlaw.running.finish import failure_reason, write_limits
from wattlaw.running.launcher import Allocation, Ended, Launcher
from wattlaw.running.node_setup import (
    Rendezvous,
    limit_states,
    log_head,
    permission_problem,
    range_reason,
    requested_limits,
    restore_stale_limits,
    unsupported_limits_reason,
    worker_environment,
)
from wattlaw.running.training.environment import threads_of
from wattlaw.store.record import RunRecord
from wattlaw.store.run_folder import RunFolder
from wattlaw.study.launching import Launch
from wattlaw.study.model import RunSpec, Study
from wattlaw.workloads import catalogue

_GRACE_S = 5.0
#: To try a study out without GPUs, a few workers may share a core.
_WORKERS_PER_CORE = 2
#: How often a message of who uses this machine is made anew.
_MESSAGE_S = 10.0
#: torch's UUIDs of AMD and Intel GPUs differ from wattlaw's ids; its order is the same.
_PROBE = """import sys, torch
kinds = [getattr(torch, kind, None) for kind in sys.argv[1:]]
gpu = next((kind for kind in kinds if kind and kind.is_available()), None)
has_uuid = gpu is torch.cuda and not torch.version.hip
for index in range(gpu.device_count() if gpu else 0):
    found = gpu.get_device_properties(index)
    print("GPU", found.uuid if has_uuid else "-", found.total_memory, found.name)
"""
_PROBE_TIMEOUT_S = 120


class LocalLauncher(Launcher):
    """Gives each worker its own GPU or, on a machine without GPUs, a share of the cores.

    Without GPUs a machine has as many workers as cores. Every worker gets as many threads as the
    study or OMP_NUM_THREADS says, or else ``cores / gpus_per_node``, so that runs with one and with
    several workers are comparable. ``gpus`` are the UUIDs of the GPUs and MIG instances that torch
    can use, all visible ones if torch is not installed. ``board_of`` has the board of each visible
    one. If torch cannot use them, a run is metered and limited on all boards.
    """

    is_of_machine = True

    def __init__(
        self,
        launch: Launch,
        gpus: list[str],
        board_of: Mapping[str, str],
        hardware: tuple[Board, ...] = (),
    ) -> None:
        self._launch, self.gpus, self._board_of = launch, gpus, board_of
        self._boards = list(dict.fromkeys(board_of.values()))
        labelled = named_board(launch.hardware or "")
        self.hardware = hardware or ((labelled,) if labelled else ())
        available = len(gpus) or processes.cores()
        requested = launch.gpus_per_node
        self.capacity = min(requested or available, available) if gpus else requested or available
        share = max(1, processes.cores() // self.capacity)
        self.threads = launch.threads_per_worker or threads_of(os.environ) or share
        #: Says what the next run waits for; None if the last one did not wait.
        self._waits_for: Callable[[], str | None] | None = None
        self._message: str | None = None
        self._message_s = -math.inf

    @classmethod
    def open(cls, launch: Launch, store: Path) -> Self:  # noqa: ARG003 - it is for all stores
        restore_stale_limits()
        return cls(launch, *_devices())

    @classmethod
    def examine(cls, launch: Launch) -> Self:
        try:
            return cls(launch, *_devices())
        except NotAvailable:  # the start says so
            devices = visible_devices()
            return cls(launch, list(devices), devices)

    def unsupported_reason(self, spec: RunSpec) -> str | None:
        setting = spec.setting
        if spec.nodes > 1:
            return f"needs {spec.nodes} nodes; this machine is one (use slurm or simulated)"
        if setting.gpus > self.capacity:
            unit = "GPUs" if self.gpus else "workers (launch.gpus_per_node, or its cores)"
            return f"needs {setting.gpus} workers; this machine has {self.capacity} {unit}"
        limits = requested_limits(setting)
        reason = unsupported_limits_reason(
            limits, self._boards, prior_clocks_are_default=self._launch.prior_clocks == "default"
        )
        if reason is None and not limits.are_none:
            reason = range_reason(limits, self._limit_states, self._boards)
        return reason or too_large_reason(spec, self.hardware)

    @cached_property
    def _limit_states(self) -> list[LimitState]:
        return limit_states(self._boards)

    def warnings(self, specs: Sequence[RunSpec]) -> Iterator[str]:
        requested, gpus = self._launch.gpus_per_node or 0, len(self.gpus)
        if gpus and requested > gpus:
            yield f"launch.gpus_per_node is {requested}; this machine has {plural(gpus, 'GPU')}"
        elif not gpus and requested > _WORKERS_PER_CORE * processes.cores():
            yield (
                f"launch.gpus_per_node is {requested}; this machine has no GPU that torch can use, "
                f"and {plural(processes.cores(), 'core')}, which its workers share"
            )
        yield from memory_warnings(specs, self.hardware)
        has_limits = any(not requested_limits(spec.setting).are_none for spec in specs)
        problem = permission_problem(self._boards) if has_limits and self._boards else None
        if problem is not None:
            yield f"runs with power or clock limits or a power profile will be skipped: {problem}"

    def missing(self, study: Study) -> list[str]:
        return catalogue.missing_packages(study)

    def allocate(self, spec: RunSpec) -> "LocalAllocation | None":
        """A slot is a board: runs on MIG instances of one would each record all its energy."""
        runs = [f"run-{i}" for i in range(self._launch.max_parallel)]
        run = free_slot(runs)
        if run is None:
            self._waits_for = partial(users_text, runs)
            return None
        names = (self.gpus or [f"cpu-{i}" for i in range(self.capacity)])[: self.capacity]
        instances: dict[str, list[str]] = defaultdict(list)
        for name in names:
            instances[self._board_of.get(name, name)].append(name)
        boards, workers = SlotLease(), list[str]()
        for board, own in instances.items():
            if len(workers) < spec.setting.gpus and (slot := free_slot([board])):
                boards |= slot
                workers += own
        allocation = LocalAllocation(run, boards, workers[: spec.setting.gpus])
        if len(workers) < spec.setting.gpus:
            self._waits_for = partial(users_text, list(instances))
            allocation.release()
            return None
        self._waits_for, self._message_s = None, -math.inf
        if not requested_limits(spec.setting).are_none:
            limited = list(boards) if self.gpus else self._boards
            try:
                allocation.lease = acquire(limited)
                if allocation.lease is None:
                    self._waits_for = lambda: f"waiting: {lock_conflict(limited)}"
                    allocation.release()
                    return None
            except NotAvailable as error:
                allocation.error = error
        return allocation

    def status_message(self) -> str | None:
        if self._waits_for is None:
            return None
        if time.monotonic() > self._message_s + _MESSAGE_S:
            self._message, self._message_s = self._waits_for(), time.monotonic()
        return self._message

    def start(
        self, record: RunRecord, folder: RunFolder, allocation: "LocalAllocation"
    ) -> "LocalAttempt":
        """``NotAvailable`` if the run's limits cannot be set."""
        if allocation.error is not None:
            raise allocation.error
        if allocation.lease is not None:
            applied = allocation.lease.apply(requested_limits(record.spec.setting))
            write_limits(folder.live(record.attempts), socket.gethostname(), applied)
        allocation.rendezvous = Rendezvous()
        gpus = record.spec.setting.gpus
        sharing = gpus if self._launch.max_parallel == 1 else self.capacity
        environment = isolated_environment() | allocation.rendezvous.environment
        environment |= worker_environment(self.threads, sharing)
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
        if self.gpus:
            environment |= gpu_environment(allocation.workers)
        line = isolated_python("-m", "wattlaw.running.training.agent")
        line += [str(folder.path.resolve()), str(record.attempts), "--parent-pid", str(os.getpid())]
        with naming(folder.log_path), open_regular(folder.log_path, append=True) as log:
            log.write(log_head(record).encode())
            log.flush()
            process = subprocess.Popen(
                line,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return LocalAttempt(process, record, folder, allocation, self._launch.timeout_s)


class SlotLease(dict[str, socket.socket], Allocation):
    def release(self) -> None:
        while self:
            self.popitem()[1].close()


def free_slot(names: Sequence[str]) -> SlotLease | None:
    """Lock the first of the named slots that no process has."""
    for name in names:
        if (lock := machine_lock.lock(f"slot/{name}")) is not None:
            return SlotLease({name: lock})
    return None


def users_text(slots: Sequence[str]) -> str | None:
    """Say which other processes have these slots; None without any."""
    found = {machine_lock.holder(f"slot/{name}") for name in slots}
    others = sorted(holder for holder in found if holder is not None and holder[0] != os.getpid())
    # A process of another container has no number here.
    names = [f"process {pid} of user {user}" if pid else f"a process of user {user}"
             for pid, user in others]  # fmt: skip
    text = "waiting: another wattlaw run uses this machine: "
    return f"{text}{'; '.join(names)}" if names else None


@dataclass
class LocalAllocation(Allocation):
    run: SlotLease
    boards: SlotLease
    workers: list[str]  # the GPU or MIG instance of each
    lease: LimitLease | None = None
    rendezvous: Rendezvous | None = None
    #: Why limits cannot be set on the boards, so that the run is skipped.
    error: NotAvailable | None = None
    #: Why limits could not be restored.
    restore_error: str | None = None

    def release(self) -> None:
        try:
            if self.lease is not None:
                self.lease.release()
        except NotAvailable as error:
            self.restore_error = str(error)
            print(f"wattlaw: {error}", file=sys.stderr)
        finally:
            self.lease = None
            if self.rendezvous is not None:
                self.rendezvous.close()
            self.boards.release()
            self.run.release()


@dataclass
class LocalAttempt:
    _process: subprocess.Popen[bytes]
    _record: RunRecord
    _folder: RunFolder
    _allocation: LocalAllocation
    _timeout_s: float | None
    _begun_s: float = field(default_factory=time.monotonic)
    _ended: Ended | None = None

    def poll(self) -> Ended | None:
        if self._ended is None:
            code = self._process.poll()
            limit = self._timeout_s
            if code is not None:
                reason = failure_reason(self._folder, self._record.attempts, code) if code else None
                self._allocation.release()
                error = self._allocation.restore_error
                self._ended = Ended(reason, (error,) if error else ())
            elif limit is not None and time.monotonic() - self._begun_s > limit:
                self.stop()
                self._ended = Ended(f"time limit of {limit:g} s reached (launch.timeout_s)")
        return self._ended

    def stop(self) -> None:
        """Terminate the agent with all its descendants, and kill them after 5 s."""
        if self._ended is None:
            try:
                processes.terminate(processes.process_tree(self._process.pid), _GRACE_S)
                self._process.wait()
            finally:
                self._ended = Ended("stopped")
                self._allocation.release()


def _devices() -> tuple[list[str], dict[str, str], tuple[Board, ...]]:
    """Return the GPUs that torch can use, the board of each visible one, and their kinds."""
    devices = visible_devices()
    if importlib.util.find_spec("torch") is None:  # for commands, which may not need it
        return list(devices), devices, ()
    vendors = accelerators()
    drivers = [file for vendor in vendors for file in vendor.driver_files]
    if not devices and not any(map(os.path.exists, drivers)):
        return [], devices, ()
    kinds = tuple(vendor.torch_kind for vendor in vendors)
    uuids, hardware = _probe_torch(kinds, tuple(sorted(isolated_environment().items())))
    return _usable(list(devices), uuids), devices, hardware


def _usable(visible: list[str], uuids: Sequence[str]) -> list[str]:
    if "-" in uuids:
        return visible[: len(uuids)]
    gpus = [f"GPU-{uuid}" for uuid in uuids]
    instances = [device for device in visible if device.startswith("MIG-")]
    # Without a list CUDA shows a process GPUs, or else one MIG instance; a run gets a list.
    return gpus if {*gpus} <= {*visible} or not (gpus and instances) else instances


@cache
def _probe_torch(
    kinds: tuple[str, ...], environment: tuple[tuple[str, str], ...]
) -> tuple[list[str], tuple[Board, ...]]:
    line = isolated_python("-c", _PROBE, *kinds)
    try:
        probe = processes.run_captured(line, _PROBE_TIMEOUT_S, dict(environment))
        probe.check_returncode()
    except (subprocess.SubprocessError, OSError) as error:
        lines = str(getattr(error, "stderr", None) or error).strip().splitlines()
        raise NotAvailable(f"torch cannot be used here: {lines[-1]}") from None
    rows = [row.split(maxsplit=3) for row in probe.stdout.splitlines() if row.startswith("GPU ")]
    boards = [Board(name, int(memory_bytes) / 1e9) for _, _, memory_bytes, name in rows]
    return [uuid for _, uuid, _, _ in rows], tuple(boards)
