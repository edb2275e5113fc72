"""The launcher ``local``: runs as child processes of this one, on this machine."""

import importlib.util
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

from wattlaw import processes
from wattlaw.devices.nvidia.driver import visible_gpu_ids
from wattlaw.errors import NotAvailable
from wattlaw.files import naming, open_regular
from wattlaw.isolation import isolated_environment, isolated_python
from wattlaw.launch.finish import failure_reason, write_limits
from wattlaw.launch.launcher import AttachedLauncher, Ended
from wattlaw.launch.limits import requested_limits, restore_stale_limits, unsupported_limits_reason
from wattlaw.launch.rendezvous import Rendezvous
from wattlaw.launch.slots import SlotLease, Slots
from wattlaw.limits.guard import LimitLease, acquire, lock_conflict
from wattlaw.store.record import RunRecord, now
from wattlaw.store.run_folder import RunFolder
from wattlaw.study.launching import Launch
from wattlaw.study.model import RunSpec

_GRACE_S = 5.0
_NVIDIA = ("/dev/nvidiactl", "/dev/dxg")
_PROBE = """import torch
for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
    print("GPU", torch.cuda.get_device_properties(index).uuid)
"""
_PROBE_TIMEOUT_S = 120


class LocalLauncher(AttachedLauncher):
    """Gives each worker a GPU of its own or, where there is none, a share of the cores.

    Without GPUs a machine holds as many workers as it has cores, and every worker gets
    ``cores / gpus_per_node`` threads whatever the number of workers of its run, so that runs of
    one and of several workers compare fairly. All launchers of a user on this machine share its
    places, so that no more than ``max_parallel`` runs go side by side, of whatever study.

    Parameters
    ----------
    launch
        Settings of the study.
    gpus
        The GPUs that torch can use, or all visible ones where torch is not installed, by UUID.
    boards
        The NVIDIA boards that are ours, by UUID. Where torch cannot use them, a run is metered,
        and limited if it asks for it, with all of them.
    """

    is_durable = True

    def __init__(self, launch: Launch, gpus: list[str], boards: list[str]) -> None:
        self._launch = launch
        self._gpus, self._boards = gpus, boards
        self._slots = Slots.of_this_user()
        self._told: set[str] = set()

    @classmethod
    def resolve(cls, launch: Launch) -> Launch:
        """Return it as it is: what is here is found out by each run."""
        return launch

    @classmethod
    def open(cls, launch: Launch, store: Path) -> Self:  # noqa: ARG003 - any store is as good
        """Count the GPUs; raises ``NotAvailable`` when torch is installed and cannot be used."""
        restore_stale_limits()
        boards = visible_gpu_ids()
        if importlib.util.find_spec("torch") is None:  # for commands, which may not need it
            return cls(launch, boards, boards)
        return cls(launch, _gpus() if boards or _has_driver() else [], boards)

    @cached_property
    def capacity(self) -> int:
        """Return how many workers this machine holds at once."""
        found = len(self._gpus) or processes.cores()
        asked = self._launch.gpus_per_node
        return min(asked, found) if asked and self._gpus else asked or found

    @cached_property
    def threads(self) -> int:
        """Return the processor threads of each worker."""
        share = processes.cores() // self.capacity
        return self._launch.threads_per_worker or max(1, share)

    def unsupported_reason(self, spec: RunSpec) -> str | None:
        """Return why this machine can never do a run, or None."""
        setting = spec.setting
        if setting.gpus > self.capacity:
            what = "GPUs" if self._gpus else "workers (launch.gpus_per_node, or its cores)"
            return f"needs {setting.gpus} workers; this machine holds {self.capacity} {what}"
        return unsupported_limits_reason(
            requested_limits(setting),
            self._boards,
            prior_clocks_are_default=self._launch.prior_clocks == "default",
        )

    def allocate(self, spec: RunSpec) -> "LocalAllocation | None":
        """Take a place among ``max_parallel`` runs, and one for each worker."""
        run = self._slots.acquire([f"run-{i}" for i in range(self._launch.max_parallel)], 1)
        if run is None:
            return None
        names = self._gpus or [f"cpu-{i}" for i in range(self.capacity)]
        workers = self._slots.acquire(names[: self.capacity], spec.setting.gpus)
        if workers is None:
            run.release()
            return None
        allocation = LocalAllocation(run, workers)
        if not requested_limits(spec.setting).are_none:
            boards = workers.names if self._gpus else self._boards
            try:
                allocation.lease = acquire(boards)
            except NotAvailable as error:
                allocation.refusal = error
                return allocation
            if allocation.lease is None:
                self._tell_once(f"waiting: {lock_conflict(boards)}")
                allocation.release()
                return None
        return allocation

    def _tell_once(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            print(f"wattlaw: {line}", file=sys.stderr)

    def close(self) -> None:
        """Nothing is held beside the attempts."""

    def start(
        self, record: RunRecord, folder: RunFolder, allocation: "LocalAllocation"
    ) -> "LocalAttempt":
        """Start a run's node agent in a session, and so a process group, of its own.

        Raises
        ------
        NotAvailable
            Its limits cannot be set.
        """
        workers = record.spec.setting.gpus
        if allocation.refusal is not None:
            raise allocation.refusal
        if allocation.lease is not None:
            applied = allocation.lease.apply(requested_limits(record.spec.setting))
            write_limits(folder.live(record.attempts), socket.gethostname(), applied)
        rendezvous = allocation.rendezvous = Rendezvous(folder.live(record.attempts).resolve())
        environment = {
            **isolated_environment(),
            "OMP_NUM_THREADS": str(self.threads),
            "MKL_NUM_THREADS": str(self.threads),
            "PYTHONUNBUFFERED": "1",
            **rendezvous.environment,
        }
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
        if self._gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(allocation.workers.names)
        line = isolated_python("-m", "wattlaw.training.agent")
        line += [str(folder.path.resolve()), str(record.attempts)]
        line += ["--workers", str(workers), "--parent-pid", str(os.getpid())]
        line += rendezvous.words
        with naming(folder.log_path), open_regular(folder.log_path, append=True) as log:
            head = f"\n== attempt {record.attempts}, {now():%Y-%m-%d %H:%M:%S} UTC\n"
            log.write(head.encode())
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


@dataclass
class LocalAllocation:
    """What one run occupies."""

    run: SlotLease
    workers: SlotLease
    lease: LimitLease | None = None
    rendezvous: Rendezvous | None = None
    #: Why the boards could not be held, so that the run is skipped.
    refusal: NotAvailable | None = None
    #: What could not be given back.
    trouble: str | None = None

    def release(self) -> None:
        """Give it back, limits first."""
        try:
            if self.lease is not None:
                self.lease.release()
        except NotAvailable as error:
            self.trouble = str(error)
            print(f"wattlaw: {error}", file=sys.stderr)
        finally:
            self.lease = None
            if self.rendezvous is not None:
                self.rendezvous.close()
            self.workers.release()
            self.run.release()


class LocalAttempt:
    """The process tree under one node agent."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        record: RunRecord,
        folder: RunFolder,
        allocation: LocalAllocation,
        timeout_s: float | None,
    ) -> None:
        self._process, self._record, self._folder = process, record, folder
        self._room = allocation
        self._timeout_s = timeout_s
        self._begun_s = time.monotonic()
        self._ended: Ended | None = None

    def poll(self) -> Ended | None:
        """Return how the attempt ended; an attempt over its time is stopped here."""
        if self._ended is None:
            code = self._process.poll()
            limit = self._timeout_s
            if code is not None:
                reason = failure_reason(self._folder, self._record.attempts, code) if code else None
                self._room.release()
                trouble = (self._room.trouble,) if self._room.trouble else ()
                self._ended = Ended(reason, trouble)
            elif limit is not None and time.monotonic() - self._begun_s > limit:
                self.stop()
                self._ended = Ended(f"time limit of {limit:g} s reached (launch.timeout_s)")
        return self._ended

    def stop(self) -> None:
        """End the agent with all its descendants: asked first, then killed."""
        if self._ended is None:
            try:
                processes.terminate(processes.process_tree(self._process.pid), _GRACE_S)
                self._process.wait()
            finally:
                self._ended = Ended("stopped")
                self._room.release()


def _has_driver() -> bool:
    return any(Path(node).exists() for node in _NVIDIA)


def _gpus() -> list[str]:
    """Return the GPUs that torch may use, by UUID, which means the same board to everybody.

    torch is asked in a process of its own, so that this one stays small, and only where there is
    an NVIDIA driver, because asking takes seconds.
    """
    try:
        found = subprocess.run(
            isolated_python("-c", _PROBE),
            env=isolated_environment(),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_PROBE_TIMEOUT_S,
            check=True,
        )
    except (subprocess.SubprocessError, OSError) as error:
        words = str(getattr(error, "stderr", None) or error).strip().splitlines()
        raise NotAvailable(f"torch cannot be used here: {words[-1]}") from None
    told = [words.split() for words in found.stdout.splitlines()]
    return [f"GPU-{words[1]}" for words in told if len(words) == 2 and words[0] == "GPU"]
