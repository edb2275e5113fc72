"""A run that is recorded where it executes: a measured command, or a tracked part of a program."""

import contextlib
import os
import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

from wattlaw.common.errors import BadInput, NotAvailable
from wattlaw.common.files import open_regular, read_text, write_text
from wattlaw.measure.devices.meter import Target
from wattlaw.measure.telemetry.sampler import SamplerProcess
from wattlaw.running.finish import failed, finalize_run
from wattlaw.running.instrumentation.hook._wattlaw.layouts import first_number
from wattlaw.running.steps import other_batch
from wattlaw.running.training.environment import ATTEMPT, RUN_FOLDER, host_name
from wattlaw.running.training.failures import first_failure, write_failure
from wattlaw.store.live import LiveWriter, open_windows, write_facts, write_window
from wattlaw.store.record import Facts, RunRecord, now
from wattlaw.store.run_folder import RunFolder, RunLock
from wattlaw.store.store import Store
from wattlaw.study.model import Measure, RunSpec, run_id

#: The last reading must lie after the end of the last window: counters refresh every 0.1 s.
_AFTER_S = 0.15
#: How long tasks wait for the run of the first one, and the first one for the other hosts: to
#: begin if its own part is over, and to end.
_RUN_S, _BEGIN_S, _END_S = 60.0, 10.0, 60.0
_POLL_S = 0.1
_NO_FACTS = Facts()


@dataclass(frozen=True)
class JobStep:
    """The tasks of one ``srun``: together they record one run, in a folder that all nodes share."""

    id: str
    nodes: int
    task: int
    local_task: int  # among those of this host

    @classmethod
    def of_environment(cls) -> "JobStep | None":
        ids = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
        step = "-".join(os.environ.get(name, "0") for name in ids)
        if (first_number(["SLURM_STEP_NUM_TASKS"]) or 1) < 2 or not re.fullmatch("[0-9-]+", step):
            return None
        names = ("STEP_NUM_NODES", "PROCID", "LOCALID")
        read = (first_number([f"SLURM_{name}"]) for name in names)
        numbers = [number for number in read if number is not None]
        return cls(step, *numbers) if len(numbers) == len(names) else None

    def join(self, store: Store, what: str) -> RunFolder:
        """Return the run that the first task has begun, once for each task; or ``NotAvailable``."""
        path, end_s = self.path(store, what), time.monotonic() + _RUN_S
        while time.monotonic() < end_s:
            try:
                run_id = read_text(path)
                if re.fullmatch("[0-9a-f]{16}", run_id):
                    folder = store.folder(run_id)
                    (folder.live(1) / f"joined.{self.task}").open("x").close()
                    return folder
            except OSError:
                pass
            time.sleep(_POLL_S)
        raise NotAvailable(
            f"{store.path}: no run of task 0 of this srun within {_RUN_S:g} s; this node is not "
            "recorded; use a folder on a file system that all nodes share"
        )

    def path(self, store: Store, what: str) -> Path:
        """Return the file that names the run to the other tasks while it goes on."""
        return store.path / f"step.{self.id}.{what}"


def missing_hosts(live: Path, nodes: int) -> str | None:
    """Wait for the other hosts of a run; return how many have recorded nothing, as a message."""
    begun = _wait_for(live, "windows.*.csv", nodes, _BEGIN_S)
    ended = _wait_for(live, "facts.*.json", begun, _END_S)
    if ended >= nodes:
        return None
    return (
        f"{nodes - ended} of {nodes} nodes recorded nothing; the store must be on a file system "
        "that all nodes share, and the command must end on all of them"
    )


def _wait_for(folder: Path, pattern: str, files: int, most_s: float) -> int:
    end_s = time.monotonic() + most_s
    while (count := len([*folder.glob(pattern)])) < files and time.monotonic() < end_s:
        time.sleep(_POLL_S)
    return count


class Recording:
    """One run with a sampler, as the first repeat of its setting that the store does not have.

    The tasks of one ``srun`` record one run: the first task stores it, and the first of each host
    writes its windows and samples.
    """

    def __init__(
        self, store: Store, spec: RunSpec, facts: Facts = _NO_FACTS, step: JobStep | None = None
    ) -> None:
        self._store, self._spec, self.measure, self._step = store, spec, spec.measure, step
        self._what = f"{spec.launch_kind}.{spec.workload.name}"
        self.facts = facts  # that the program has stated about itself
        self.host = socket.gethostname()
        self._sampler: SamplerProcess | None = None
        self._windows: LiveWriter | None = None
        self._lock: RunLock | None = None  # of the task that stores the run

    def begin(self) -> None:
        step = self._step
        if step is not None and step.task > 0:
            self.folder = step.join(self._store, self._what)
            self.live = self.folder.live(1)
        else:
            self._create()
        if step is None or step.local_task == 0:
            self._windows = open_windows(self.live, self.host)
            target = Target(os.getpid(), 1 / self.measure.sample_hz, self.measure.assume_cpu_w)
            with open_regular(self.folder.log_path, append=True) as log:
                self._sampler = SamplerProcess(self.live, self.host, target, log=log)
            self._sampler.wait_until_ready()

    def _create(self) -> None:
        self._store.create()
        self.folder, self._lock, spec = self._next_repeat()
        name, run_id = spec.workload.name, self.folder.run_id
        record = RunRecord(run_id=run_id, study=name, spec=spec, seed=0, order_seed=0)
        running = {"status": "running", "attempts": 1, "started_at": now()}
        self.record = record.model_copy(update=running)
        self.folder.write(self.record)
        self.live = self.folder.live(1)
        self.live.mkdir(parents=True)
        if self._step is not None:
            write_text(self._step.path(self._store, self._what), self.folder.run_id)

    def _next_repeat(self) -> tuple[RunFolder, RunLock, RunSpec]:
        for repeat in count(self._spec.repeat):
            spec = self._spec.model_copy(update={"repeat": repeat})
            folder = self._store.folder(run_id(spec))
            lock = RunLock(folder)
            with contextlib.suppress(BadInput):  # a damaged run stays as it is
                if folder.read() is None and lock.acquire():
                    if folder.read() is None:
                        return folder, lock, spec
                    lock.release()
        raise AssertionError("the search for a repeat ended")

    def other_batch(self, of_host: Mapping[int, int]) -> tuple[int | None, tuple[str, ...]]:
        """``of_host`` counts steps by the samples of this host; every host has as many."""
        nodes = self._spec.nodes
        if self._spec.setting.gpus % nodes:
            return None, ()
        of_all = {samples * nodes: steps for samples, steps in of_host.items()}
        return other_batch(of_all, self._spec.global_batch)

    def window(self, **window: Any) -> None:
        write_window(self._windows, self.host, **window)

    def end(
        self, reason: str | None = None, notes: tuple[str, ...] = (), *, interrupted: bool = False
    ) -> RunRecord | None:
        is_other = self._step is not None and self._step.task > 0
        if self._step is not None and is_other and reason is not None:
            where = f"{self.host}.{self._step.task}"
            write_failure(self.live, where, "exited", f"task {self._step.task}: {reason}")
        self._end_live()
        if is_other:
            return None
        nodes = self._spec.nodes
        missing = missing_hosts(self.live, nodes) if nodes > 1 else None
        failure = first_failure(self.live)
        reason = reason or (failure.reason if failure else missing)
        record = finalize_run(self.record, self.folder)
        if reason is not None:
            record = failed(record, reason, interrupted=interrupted)
        changes = {"finished_at": now(), "notes": (*record.notes, *notes)}
        self.record = record.model_copy(update=changes)
        self.folder.write(self.record)
        self.folder.remove_live_files()
        self._release()
        return self.record

    def abandon(self) -> None:
        with contextlib.suppress(Exception):
            if self._sampler is not None:
                self._sampler.stop()
        with contextlib.suppress(Exception):
            self._release()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            if self._step is not None:
                self._step.path(self._store, self._what).unlink(missing_ok=True)

    def _end_live(self) -> None:
        if self._sampler is None or self._windows is None:
            return
        time.sleep(_AFTER_S)
        self._sampler.stop()
        self._windows.close()
        write_facts(self.live, self.host, dict(self.facts))


class NestedRecording:
    """The windows of a program that ``wattlaw run`` has started; the campaign stores the run."""

    _stream: ClassVar[LiveWriter | None] = None  # shared by all recordings of the process

    def __init__(self) -> None:
        self.folder = RunFolder(Path(os.environ[RUN_FOLDER]))
        self._attempt = int(os.environ.get(ATTEMPT, "1"))
        self.measure = Measure(epochs=1, warmup_epochs=0)

    def begin(self) -> None:
        record = self.folder.read()
        if record is not None:
            self.measure = record.spec.measure

    def window(self, **window: Any) -> None:
        host = host_name()
        if NestedRecording._stream is None:
            NestedRecording._stream = open_windows(self.folder.live(self._attempt), host)
        write_window(NestedRecording._stream, host, **window)

    def abandon(self) -> None: ...
