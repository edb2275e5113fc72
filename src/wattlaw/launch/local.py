"""The launcher ``local``: runs as child processes of this one, on this machine."""

import importlib.util
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

from wattlaw import processes
from wattlaw.errors import NotAvailable
from wattlaw.launch.finish import failure_of
from wattlaw.launch.launcher import Ended
from wattlaw.launch.places import Claim, Places
from wattlaw.store.record import RunRecord, now
from wattlaw.store.run_folder import RunFolder
from wattlaw.study.model import Launch, RunSpec
from wattlaw.training.handover import RENDEZVOUS_FILE

_GRACE_S = 5.0
_NVIDIA = ("/dev/nvidiactl", "/dev/dxg")
_PROBE = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"
_PROBE_TIMEOUT_S = 120


class LocalLauncher:
    """Gives each worker a GPU of its own or, where there is none, a share of the cores.

    Without GPUs a machine holds as many workers as it has cores, and every worker gets
    ``cores / gpus_per_node`` threads whatever the number of workers of its run, so that runs of
    one and of several workers compare fairly. All launchers of a user on this machine share its
    places, so that no more than ``max_parallel`` runs go side by side, of whatever study.
    """

    def __init__(self, launch: Launch, gpus: list[str]) -> None:
        self._launch = launch
        self._gpus = gpus
        self._places = Places.of_this_user()

    @classmethod
    def open(cls, launch: Launch) -> Self:
        """Count the GPUs; raises ``NotAvailable`` when torch is not there or cannot be used."""
        if importlib.util.find_spec("torch") is None:
            raise NotAvailable("torch is not installed; try: pip install 'wattlaw[train]'")
        return cls(launch, _gpus())

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

    def refuses(self, spec: RunSpec) -> str | None:
        """Return why this machine can never do a run, or None."""
        setting = spec.setting
        if setting.gpus > self.capacity:
            what = "GPUs" if self._gpus else "workers (launch.gpus_per_node, or its cores)"
            return f"needs {setting.gpus} workers; this machine holds {self.capacity} {what}"
        if setting.power_limit_w is not None or setting.clock_limit_mhz is not None:
            return "asks for a power or clock limit; nothing here can set one"
        return None

    def claim(self, spec: RunSpec) -> "Room | None":
        """Take a place among ``max_parallel`` runs, and one for each worker."""
        run = self._places.claim([f"run-{i}" for i in range(self._launch.max_parallel)], 1)
        if run is None:
            return None
        names = self._gpus or [f"cpu-{i}" for i in range(self.capacity)]
        workers = self._places.claim(names[: self.capacity], spec.setting.gpus)
        if workers is None:
            run.release()
            return None
        return Room(run, workers)

    def start(self, record: RunRecord, folder: RunFolder, claim: "Room") -> "LocalAttempt":
        """Start a run's node agent in a session, and so a process group, of its own."""
        workers = record.spec.setting.gpus
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(self.threads),
            "MKL_NUM_THREADS": str(self.threads),
            "PYTHONUNBUFFERED": "1",
            **_meet_without_network(folder.live(record.attempts)),
        }
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
        if self._gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(claim.workers.names)
        line = [sys.executable, "-m", "wattlaw.training.agent"]
        line += [str(folder.path.resolve()), str(record.attempts)]
        line += ["--workers", str(workers), "--parent-pid", str(os.getpid())]
        line += ["--rdzv-backend", "c10d", "--rdzv-conf", "store_type=file"]
        line += ["--rdzv-endpoint", str(folder.live(record.attempts).resolve() / "agents")]
        with folder.log_path.open("a", encoding="utf-8") as log:
            log.write(f"\n== attempt {record.attempts}, {now():%Y-%m-%d %H:%M:%S} UTC\n")
            log.flush()
            process = subprocess.Popen(
                line,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return LocalAttempt(process, record, folder, claim, self._launch.timeout_s)


@dataclass(frozen=True)
class Room:
    """What one run occupies."""

    run: Claim
    workers: Claim

    def release(self) -> None:
        """Give it back."""
        self.workers.release()
        self.run.release()


class LocalAttempt:
    """The process tree under one node agent."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        record: RunRecord,
        folder: RunFolder,
        room: Room,
        timeout_s: float | None,
    ) -> None:
        self._process, self._record, self._folder = process, record, folder
        self._room = room
        self._timeout_s = timeout_s
        self._begun_s = time.monotonic()
        self._ended: Ended | None = None

    def poll(self) -> Ended | None:
        """Return how the attempt ended; an attempt over its time is stopped here."""
        if self._ended is None:
            code = self._process.poll()
            limit = self._timeout_s
            if code is not None:
                reason = failure_of(self._folder, self._record.attempts, code) if code else None
                self._ended = Ended(reason)
                self._room.release()
            elif limit is not None and time.monotonic() - self._begun_s > limit:
                self.stop()
                self._ended = Ended(f"time limit of {limit:g} s reached (launch.timeout_s)")
        return self._ended

    def stop(self) -> None:
        """End the agent with all its descendants: asked first, then killed."""
        if self._ended is None:
            processes.end(processes.tree(self._process.pid), _GRACE_S)
            self._process.wait()
            self._ended = Ended("stopped")
            self._room.release()


def _meet_without_network(live: Path) -> dict[str, str]:
    """Return the environment in which processes of one machine find each other through files.

    torch's TCP store would listen on every interface of the machine.
    """
    return {
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        RENDEZVOUS_FILE: str(live.resolve() / "ranks"),
    }


def _gpus() -> list[str]:
    """Return the GPUs that torch may use, as CUDA_VISIBLE_DEVICES names them.

    torch is asked in a process of its own, so that this one stays small, and only where there is
    an NVIDIA driver, because asking takes seconds.
    """
    if not any(Path(node).exists() for node in _NVIDIA):
        return []
    line = [sys.executable, "-c", _PROBE]
    try:
        found = subprocess.run(
            line, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=True
        )
    except (subprocess.SubprocessError, OSError) as error:
        words = str(getattr(error, "stderr", None) or error).strip().splitlines()
        raise NotAvailable(f"torch cannot be used here: {words[-1]}") from None
    count = int(found.stdout.split()[-1])
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    named = [part.strip() for part in visible.split(",")] if visible else []
    return (named or [str(index) for index in range(count)])[:count]
