"""Records the optimizer steps of this process in ``$WATTLAW_STEPS/steps.HOST.PID.jsonl``.

docs/instrumentation.md lists the records. No thread is started, and a GPU is never waited for
within a step.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from . import loaders, model

_clock = time.perf_counter_ns
_FLUSH_NS = 450_000_000
_EXIT_POLL_S = 2.0  # how long the exit waits for the times of the last steps on a GPU
_MAX_FILE_BYTES = 128 * 2**20
_MAX_OPTIMIZERS = 64  # that live at the same time
_MAX_PENDING = 10_000  # events of a GPU
_GPUS = ("cuda", "xpu")  # torch's names of GPUs; cuda includes AMD's
#: Environment variables of launchers, by what they say.
_LAUNCHERS = {
    "rank": ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"),
    "env_world_size": ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"),
    "local_world_size": (
        "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS",
        "SLURM_STEP_TASKS_PER_NODE",
    ),
}  # fmt: skip


class _Optimizer:
    """The steps of one optimizer."""

    def __init__(self, index: int, optimizer: Any, loaded: loaders.LoadedSamples) -> None:
        self.index, self.reference = index, weakref.ref(optimizer)
        self.steps = 0  # written and unwritten
        self.ends_ns: list[int] = []
        self.samples: list[int | None] = []
        self.waits_us: list[int] = []  # in data loaders; 0 where the samples are unknown
        self.evaluated: list[int] = []  # steps with an evaluation since the step before
        self.total, self.unknown = loaded.samples, loaded.unknown  # at the last step
        self.evaluations, self.waited_ns = loaded.evaluations, loaded.waited_ns
        parameters = optimizer.param_groups[0]["params"]
        kind = parameters[0].device.type if parameters else None
        gpu: Any = getattr(sys.modules["torch"], kind) if kind in _GPUS else None
        self.device = _DeviceTimes(lambda: gpu.Event(enable_timing=True)) if gpu else None


class _DeviceTimes:
    """When a GPU has ended each step, by events that are polled later."""

    def __init__(self, event: Callable[[], Any]) -> None:
        self._new = event
        self._pending: deque[tuple[int, Any]] = deque()
        self._free: list[Any] = []
        self._last: Any = None  # the newest event that has happened
        self._since_first_ns = 0.0
        self.low_ns, self.high_ns = -(2**62), 2**62  # bounds of the first event's time
        self.durations_us: list[float] = []  # of the steps that have ended and are not written
        self.written = 0

    def mark(self, now_ns: int) -> None:
        if len(self._pending) >= _MAX_PENDING:
            raise RuntimeError("the GPU is too far behind")
        event = self._free.pop() if self._free else self._new()
        event.record()
        self._pending.append((now_ns, event))
        self.poll(2)

    def poll(self, most: int) -> bool:
        """Take the times of steps that have ended; return whether one is missing."""
        while self._pending and most and self._pending[0][1].query():
            recorded_ns, event = self._pending.popleft()
            if self._last is not None:
                duration_us = self._last.elapsed_time(event) * 1e3
                self._since_first_ns += duration_us * 1e3
                self.durations_us.append(round(duration_us, 1))
                self._free.append(self._last)
            self._last = event
            self.low_ns = max(self.low_ns, recorded_ns - int(self._since_first_ns))
            self.high_ns = min(self.high_ns, _clock() - int(self._since_first_ns))
            most -= 1
        return bool(self._pending)


class _Recorder:
    """The recording of this process; a forked process begins another one."""

    def __init__(self) -> None:
        self.folder = os.environ.get("WATTLAW_STEPS", "")
        self.host = os.environ.get("WATTLAW_HOST") or socket.gethostname()
        self.reset()

    def reset(self) -> None:
        self.lock = threading.Lock()
        self.file, self.path, self.identity = -1, "", (0, 0)
        self.written_bytes = 0
        self.off = set() if os.path.isabs(self.folder) else {"steps"}
        self.problems: list[dict[str, Any]] = []
        self.base_ns = 0  # the wall clock minus the clock of the steps
        self.optimizers: dict[int, _Optimizer] = {}
        self.steps = self.next_index = 0  # of all optimizers
        self.next_flush_ns = self.next_facts = 0
        self.has_ended = False
        self.parameters: dict[str, Any] = {}
        self.loaded = loaders.LoadedSamples()

    def fail(self, part: str, error: BaseException) -> None:
        """Stop a part of the recording and record why."""
        if part not in self.off:
            self.off |= {part, "steps"} if part == "file" else {part}
            text = f"{type(error).__name__}: {error}"[:300]
            self.problems.append({"type": "problem", "part": part, "error": text})

    # Steps

    def add(self, optimizer: Any) -> _Optimizer | None:
        if any(known.reference() is None for known in self.optimizers.values()):
            self.flush()
            living = self.optimizers.items()
            self.optimizers = {key: own for key, own in living if own.reference() is not None}
        if len(self.optimizers) >= _MAX_OPTIMIZERS:
            return None
        own = _Optimizer(self.next_index, optimizer, self.loaded)
        self.optimizers[id(optimizer)] = own
        self.next_index += 1
        return own

    def step(self, optimizer: Any) -> None:
        now_ns = _clock()
        own = self.optimizers.get(id(optimizer))
        if own is None or own.reference() is not optimizer:
            own = self.add(optimizer)
            if own is None:
                return
        if own.device is not None and "device" not in self.off:
            if sys.modules["torch"].cuda.is_current_stream_capturing():
                return
            try:
                own.device.mark(now_ns)
            except Exception as error:
                self.fail("device", error)
        loaded = self.loaded
        loaded.step()
        known = loaded.unknown == own.unknown and "samples" not in self.off
        own.samples.append(loaded.samples - own.total if known else None)
        own.waits_us.append((loaded.waited_ns - own.waited_ns) // 1000 if known else 0)
        own.total, own.unknown, own.waited_ns = loaded.samples, loaded.unknown, loaded.waited_ns
        if loaded.evaluations != own.evaluations:
            own.evaluated.append(own.steps)
            own.evaluations = loaded.evaluations
        own.ends_ns.append(now_ns)
        own.steps += 1
        self.steps += 1
        if now_ns >= self.next_flush_ns:
            self.flush()
            self.next_flush_ns = _clock() + _FLUSH_NS

    # Facts

    def facts(self) -> dict[str, Any]:
        torch: Any = sys.modules["torch"]
        group = model.process_group()
        if self.next_facts <= 100:
            self.parameters = model.parameters_of(
                self.optimizers.values(), group["world_size"] or 1
            )
        facts = {
            "type": "facts", "step": self.steps, "batches": self.loaded.batches,
            "several_loaders": self.loaded.several_loaders, "fed_steps": self.loaded.fed,
        }  # fmt: skip
        facts.update({**group, **self.parameters})
        for kind in _GPUS:
            gpu = getattr(torch, kind, None)
            if gpu and gpu.is_available() and gpu.is_initialized():
                facts["peak_memory_bytes"] = gpu.max_memory_allocated()
        return facts

    # The file

    def flush(self, *, is_end: bool = False) -> None:
        """Write what is new. Of several threads one writes, the others go on."""
        if "file" in self.off or not self.lock.acquire(False):
            return
        try:
            records: list[dict[str, Any]] = []
            if self.path == "":
                self.open()
                records.append(self.process())
            for own in self.optimizers.values():
                records += self.steps_of(own)
            if "facts" not in self.off and (is_end or self.steps >= self.next_facts):
                try:
                    records.append(self.facts())
                except Exception as error:
                    self.fail("facts", error)
                self.next_facts = min(self.next_facts + 1000, max(2, self.next_facts * 10))
            records += self.problems
            self.problems = []
            if is_end:
                records.append({"type": "end", "time_ns": self.base_ns + _clock()})
            self.write(records)
        except Exception as error:
            self.fail("file", error)
        finally:
            self.lock.release()

    def open(self) -> None:
        name = f"steps.{self.host.replace('/', '_')}.{os.getpid()}"
        for number in range(100):  # a process id may come again
            path = os.path.join(self.folder, f"{name}{f'.{number}' * bool(number)}.jsonl")
            how = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            try:
                self.file = os.open(path, how, 0o600)
            except FileExistsError:
                continue
            break
        self.path = path
        status = os.fstat(self.file)
        self.identity = status.st_dev, status.st_ino
        self.base_ns = time.time_ns() - _clock()
        util = sys.modules.get("multiprocessing.util")
        if util is not None:  # children of multiprocessing end without atexit
            util.Finalize(None, end, exitpriority=0)

    def process(self) -> dict[str, Any]:
        return {
            "type": "process",
            "pid": os.getpid(),
            "host": self.host,
            "argv": [word[:200] for word in sys.argv[:20]],
            "python": sys.version.split()[0],
            "torch": str(sys.modules["torch"].__version__),
            **{what: _first_number(names) for what, names in _LAUNCHERS.items()},
            "time_ns": self.base_ns + _clock(),
            "base_ns": self.base_ns,
        }

    def steps_of(self, own: _Optimizer) -> list[dict[str, Any]]:
        """Return the records of an optimizer's steps that are not written; forget the steps."""
        records: list[dict[str, Any]] = []
        count = len(own.ends_ns)
        if count:
            ends_us = [end_ns // 1000 for end_ns in own.ends_ns[:count]]
            gaps_us = [after - before for before, after in zip(ends_us, ends_us[1:])]
            samples = own.samples[:count]
            record = {
                "type": "steps", "optimizer": own.index, "first": own.steps - count,
                "us": [ends_us[0], *gaps_us],
                "samples": samples[0] if len(set(samples)) == 1 else samples,
                "waits_us": own.waits_us[:count],
            }  # fmt: skip
            if own.evaluated:
                record["evaluations"], own.evaluated = own.evaluated, []
            records.append(record)
            del own.ends_ns[:count], own.samples[:count], own.waits_us[:count]
        device = own.device
        if device is not None and device.durations_us and "device" not in self.off:
            records.append({
                "type": "device", "optimizer": own.index, "first": device.written + 1,
                "us": device.durations_us,
                "low_us": device.low_ns // 1000, "high_us": device.high_ns // 1000,
            })  # fmt: skip
            device.written += len(device.durations_us)
            device.durations_us = []
        return records

    def write(self, records: list[dict[str, Any]]) -> None:
        lines = (json.dumps(record, separators=(",", ":")) + "\n" for record in records)
        data = "".join(lines).encode()
        self.written_bytes += len(data)
        if self.written_bytes > _MAX_FILE_BYTES:
            data = b'{"type":"problem","part":"file","error":"the file has its largest size"}\n'
            self.off |= {"file", "steps"}
        try:
            status = os.fstat(self.file)
            is_ours = (status.st_dev, status.st_ino) == self.identity
        except OSError:
            is_ours = False
        if not is_ours:  # the script has closed all files, as a daemon does
            self.file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        if os.write(self.file, data) < len(data):
            self.off |= {"file", "steps"}


def _first_number(names: tuple[str, ...]) -> int | None:
    for name in names:
        text = os.environ.get(name, "")
        if text.isdigit() and text.isascii() and len(text) < 8:
            return int(text)
    return None


recorder = _Recorder()
os.register_at_fork(after_in_child=recorder.reset)


@atexit.register
def end() -> None:
    """Write the last steps; a second call does nothing."""
    try:
        if recorder.steps and not recorder.has_ended:
            recorder.has_ended = True
            stop_s = time.monotonic() + _EXIT_POLL_S
            for own in recorder.optimizers.values():
                while own.device is not None and "device" not in recorder.off:
                    if not own.device.poll(_MAX_PENDING) or time.monotonic() > stop_s:
                        break
                    time.sleep(0.01)
            recorder.flush(is_end=True)
    except Exception as error:
        recorder.fail("end", error)


def _after_step(optimizer: Any, _arguments: Any, _named: Any) -> None:
    if "steps" not in recorder.off:
        try:
            recorder.step(optimizer)
        except Exception as error:
            recorder.fail("steps", error)
            recorder.flush()


_after_step._torchdynamo_disable = True  # type: ignore[attr-defined] # a compiled step calls it


def count_steps(module: Any, _: _Recorder) -> None:
    """Count the steps of all optimizers (``torch.optim.optimizer``)."""
    module.register_optimizer_step_post_hook(_after_step)
