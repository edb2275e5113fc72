"""Records the optimizer steps of this process in ``$WATTLAW_STEPS/steps.HOST.PID.TIME.jsonl``.

docs/measuring.md lists the records. No thread is started, and a GPU is never waited for
within a step.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from . import layouts, loaders, model_facts
from .device_times import (
    GRADIENT_WAITS,
    MAX_PENDING,
    TORCH_GPUS,
    DeviceTimes,
    GradientWaits,
    clock,
)  # fmt: skip

_FLUSH_NS = 450_000_000
_EXIT_POLL_S = 2.0  # how long the exit waits for the times of the last steps on a GPU
_MAX_FILE_BYTES = 128 * 2**20
_MAX_OPTIMIZERS = 64  # that live at the same time
_NO_PARAMETERS = "it has no parameters yet; steps without any are not counted"
_IN_GRAPH = (
    "a step was captured in a CUDA graph; later steps of this optimizer are not recorded, because "
    "replays run no Python"
)
_NO_STEP = (
    "an optimizer was created, but no step was recorded; steps in CUDA graphs, and those of "
    "engines that do not call torch.optim, cannot be recorded"
)
_TOO_MANY = f"only {_MAX_OPTIMIZERS} optimizers are recorded at the same time"


class _Optimizer:
    def __init__(self, index: int, optimizer: Any, loaded: loaders.LoadedSamples) -> None:
        self.index, self.reference = index, weakref.ref(optimizer)
        self.is_off = False  # its recording has ended
        self.steps = self.written = 0  # of all steps, and of those that are written
        # Of each step that is not written: its end, samples, the wait for them (0 where unknown),
        # and the backward passes of DistributedDataParallel so far.
        self.new: list[tuple[int, int | None, int, int]] = []
        self.evaluated: list[int] = []  # steps with an evaluation since the step before
        self.seen = loaded.totals()  # at the last step
        self.devices: list[Any] = []  # of its parameters
        self.gpu: DeviceTimes | None = None


class _Recorder:
    """The recording of this process; a forked process begins another one."""

    def __init__(self) -> None:
        self.folder = os.environ.get("WATTLAW_STEPS", "")
        self.host = os.environ.get("WATTLAW_HOST") or socket.gethostname()
        self.reset()

    def reset(self) -> None:
        self.lock = threading.Lock()
        self.path = ""
        self.written_bytes = 0
        self.off = set() if os.path.isabs(self.folder) else {"steps"}
        self.problems: list[dict[str, Any]] = []
        self.noted: set[str] = set()
        self.base_ns = 0  # the wall clock minus the clock of the steps
        self.optimizers: dict[int, _Optimizer] = {}
        self.steps = self.next_index = 0  # of all optimizers
        self.next_flush_ns = self.next_facts = 0
        self.has_ended = self.has_optimizer = False
        self.error: str | None = None
        self.gpus: list[Any] = []  # devices of the parameters of all optimizers
        self.parameters: dict[str, Any] = {}
        self.known: dict[str, Any] = {}
        self.loaded = loaders.LoadedSamples()
        self.waits = GradientWaits(self)
        self.held: list[Any] | None = None  # optimizers that have stepped within one step

    @contextlib.contextmanager
    def one_step(self) -> Iterator[None]:
        """Count the steps of optimizers in the block, such as of each group, as one step."""
        held: list[Any] = []
        self.held = held
        try:
            yield
        finally:
            self.held = None
            if held:
                _after_step(held[-1], (), {})

    def fail(self, part: str, error: BaseException) -> None:
        if part not in self.off:
            self.off |= {part, "steps"} if part == "file" else {part}
            self.note(part, error)

    def note(self, part: str, why: object) -> None:
        """Record what is not recorded, once for each part; never raises."""
        if part in self.noted:
            return
        self.noted.add(part)
        try:
            text = f"{type(why).__name__}: {why}" if isinstance(why, BaseException) else str(why)
        except Exception:  # an error that cannot be printed
            text = type(why).__name__
        self.problems.append({"type": "problem", "part": part, "error": text[:300]})

    def step(self, optimizer: Any) -> None:
        now_ns = clock()
        own = self.optimizers.get(id(optimizer))
        if own is None or own.reference() is not optimizer:
            own = self.add(optimizer)
        if own is None or own.is_off:
            return
        try:
            self.count(own, optimizer, now_ns)
        except Exception as error:
            own.is_off = True
            self.note(f"optimizer {own.index}", error)
        if now_ns >= self.next_flush_ns:
            self.flush()
            self.next_flush_ns = clock() + _FLUSH_NS

    def add(self, optimizer: Any) -> _Optimizer | None:
        if any(known.reference() is None for known in [*self.optimizers.values()]):
            self.flush()
            living = [*self.optimizers.items()]
            self.optimizers = {key: own for key, own in living if own.reference() is not None}
        if len(self.optimizers) >= _MAX_OPTIMIZERS:
            self.note("optimizers", _TOO_MANY)
            return None
        own = self.optimizers[id(optimizer)] = _Optimizer(self.next_index, optimizer, self.loaded)
        self.next_index += 1
        return own

    def count(self, own: _Optimizer, optimizer: Any, now_ns: int) -> None:
        """Count a step; an exception ends the recording of the optimizer."""
        if not own.devices:
            own.devices = model_facts.devices_of(optimizer)
            if not own.devices:
                self.note(f"optimizer {own.index}", _NO_PARAMETERS)
                return
            # The first parameter on a GPU is where the backward pass ends. Of parameters on a CPU
            # or the meta device, no GPU is queried.
            gpus = [device for device in own.devices if device.type in TORCH_GPUS]
            self.gpus += [device for device in gpus if device not in self.gpus]
            if gpus:
                own.gpu = DeviceTimes(getattr(sys.modules["torch"], gpus[0].type), gpus[0])
        if own.gpu is not None:
            try:
                if own.gpu.is_capturing():
                    own.is_off = True
                    self.note("CUDA graph", _IN_GRAPH)
                    return
                own.gpu.mark(now_ns)
            except Exception as error:
                own.gpu = None  # the times of the host go on
                self.note("device", error)
        try:
            self.loaded.step()
        except Exception as error:
            self.fail("samples", error)
        before, own.seen = own.seen, self.loaded.totals()
        samples, unknown, evaluations, waited_ns = (
            now - then for now, then in zip(own.seen, before)
        )
        is_known = not unknown and "samples" not in self.off
        known = (samples, waited_ns // 1000) if is_known else (None, 0)
        own.new.append((now_ns, *known, self.waits.passes))
        if evaluations:
            own.evaluated.append(own.steps)
        own.steps += 1
        self.steps += 1

    def process(self) -> dict[str, Any]:
        return {
            "type": "process",
            "pid": os.getpid(),
            "host": self.host,
            **layouts.launched(),
            "base_ns": self.base_ns,
        }

    def facts(self) -> dict[str, Any]:
        group = model_facts.process_group()
        if self.next_facts <= 100:
            readable = [own for own in [*self.optimizers.values()] if own.devices]
            tensors = model_facts.trained_parameters(readable)
            world, layout = group["world_size"] or 1, dict[str, Any]()
            try:
                layout = layouts.layout(tensors, world, group.get("rank", 0))
            except Exception as error:
                self.note("layout", error)
            if tensors or not self.parameters:  # the script may have freed them
                self.parameters = model_facts.facts_of(tensors, world, layout)
            try:
                self.known = {"software": model_facts.software(), "config": model_facts.config()}
            except Exception as error:
                self.note("software", error)
        samples, ranks = self.loaded.epoch
        facts = {
            "type": "facts",
            "dataset_samples": samples if ranks == (group["world_size"] or 1) else None,
            "batches": self.loaded.batches,
            "several_loaders": self.loaded.several_loaders,
            "fed_steps": self.loaded.fed,
            "tokens": self.loaded.tokens,
            "token_samples": self.loaded.token_samples,
            **self.known,
            **group,
            **self.parameters,
        }
        try:
            facts.update(model_facts.peak_memory(self.gpus))
        except Exception as error:
            self.note("peak memory", error)
        return facts

    def steps_of(self, own: _Optimizer) -> list[dict[str, Any]]:
        """Return the records of an optimizer's steps that are not written; forget the steps."""
        records: list[dict[str, Any]] = []
        count = len(own.new)
        if count:
            ends_ns, samples, waits_us, passes = zip(*own.new[:count])
            record = {
                "type": "steps",
                "optimizer": own.index,
                "first": own.written,
                "us": _differences([end_ns // 1000 for end_ns in ends_ns]),
                "samples": samples[0] if len(set(samples)) == 1 else samples,
                "waits_us": waits_us,
            }
            if self.waits.passes and GRADIENT_WAITS not in self.off:
                record["passes"] = _differences(passes)
            if own.evaluated:
                record["evaluations"], own.evaluated = own.evaluated, []
            records.append(record)
            own.written += count
            del own.new[:count]
        gpu = own.gpu
        if gpu is not None and gpu.durations_us:
            durations_us, gpu.durations_us = gpu.durations_us, []
            record = {"type": "device", "optimizer": own.index, "first": gpu.written + 1}
            bounds_us = {"low_us": gpu.low_ns // 1000, "high_us": gpu.high_ns // 1000}
            records.append({**record, "us": durations_us, **bounds_us})
            gpu.written += len(durations_us)
        return records

    def flush(self, *, is_end: bool = False) -> None:
        """Write what is new. Of several threads one writes, the others go on."""
        if "file" in self.off or not self.lock.acquire(False):
            return
        try:
            records: list[dict[str, Any]] = []
            if self.path == "":
                self.open()
                records.append(self.process())
            for own in [*self.optimizers.values()]:
                records += self.steps_of(own)
            first = self.waits.written
            if waits_us := self.waits.take_us():
                rounded = [round(wait_us, 1) for wait_us in waits_us]
                records.append({"type": "gradient_waits", "first": first, "us": rounded})
            if "facts" not in self.off and (is_end or self.steps >= self.next_facts):
                try:
                    records.append(self.facts())
                except Exception as error:
                    self.fail("facts", error)
                self.next_facts = min(self.next_facts + 1000, max(2, self.next_facts * 10))
            problems = len(self.problems)
            records += self.problems[:problems]
            if is_end:
                records.append({"type": "end", "error": self.error})
            self.write(records)
            del self.problems[:problems]
        except Exception as error:
            self.fail("file", error)
        finally:
            self.lock.release()

    def open(self) -> None:
        now_ns = time.time_ns()  # a process id may come again
        name = f"steps.{self.host.replace('/', '_')}.{os.getpid()}.{now_ns}.jsonl"
        path = os.path.join(self.folder, name)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        self.path = path
        self.base_ns = time.time_ns() - clock()
        util = sys.modules.get("multiprocessing.util")
        if util is not None:  # children of multiprocessing end without atexit
            util.Finalize(None, end, exitpriority=0)

    def write(self, records: list[dict[str, Any]]) -> None:
        lines = (json.dumps(record, separators=(",", ":")) + "\n" for record in records)
        data = "".join(lines).encode()
        self.written_bytes += len(data)
        if self.written_bytes > _MAX_FILE_BYTES:
            data = b'{"type":"problem","part":"file","error":"the file has its largest size"}\n'
            self.off |= {"file", "steps"}
        self.append(data)

    def append(self, data: bytes) -> None:
        # Opened each time: the script may close all files, as a daemon does.
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            if os.write(file, data) < len(data):
                raise OSError("a record could not be written as a whole; the disk may be full")
        finally:
            os.close(file)

    def end(self) -> None:
        error = getattr(sys, "last_value", None)  # that ends the script; the interpreter sets it
        is_used = self.steps or self.problems or self.has_optimizer or error is not None
        if self.has_ended or not is_used or not os.path.isabs(self.folder):
            return
        self.has_ended = True
        stop_s = time.monotonic() + _EXIT_POLL_S
        timed: list[Any] = [*self.optimizers.values(), self.waits]
        for own in timed:
            try:
                while own.gpu is not None and own.gpu.poll(MAX_PENDING):
                    if time.monotonic() > stop_s:
                        break
                    time.sleep(0.01)
            except BaseException as error:  # Ctrl-C, or a GPU that has failed
                own.gpu = None
                self.note("device", error)
        if self.has_optimizer and not self.next_index:
            self.note("steps", _NO_STEP)
        self.error = None if error is None else f"{type(error).__name__}: {error}"[:300]
        self.flush(is_end=True)
        if self.path and self.problems:  # the file could not be written, and perhaps can be
            lines = (f"\n{json.dumps(problem)}" for problem in [*self.problems])
            self.append(("".join(lines) + "\n").encode())


def _differences(values: Sequence[int]) -> list[int]:
    """Return the first value, and the difference of each to the next."""
    return [values[0], *(after - before for before, after in zip(values, values[1:]))]


recorder = _Recorder()
os.register_at_fork(after_in_child=recorder.reset)


@atexit.register
def end() -> None:
    try:
        recorder.end()
    except Exception:  # nothing more can be recorded
        pass


def _after_step(optimizer: Any, _arguments: Any, _named: Any) -> None:
    if recorder.held is not None:
        recorder.held.append(optimizer)
    elif "steps" not in recorder.off:
        try:
            recorder.step(optimizer)
        except Exception as error:
            recorder.note("steps", error)


_after_step._torchdynamo_disable = True  # type: ignore[attr-defined] # a compiled step calls it


def count_steps(module: Any, _: _Recorder) -> None:
    module.register_optimizer_step_post_hook(_after_step)

    def see(_: Any) -> bool:
        recorder.has_optimizer = True
        return True

    model_facts.observe(module.Optimizer, "__init__", recorder, see)
