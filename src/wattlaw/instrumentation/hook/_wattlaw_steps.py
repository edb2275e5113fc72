"""Records the optimizer steps of this process in ``$WATTLAW_STEPS/steps.HOST.PID.jsonl``.

docs/instrumentation.md lists the records. Standard library only, Python 3.9 or later. An error
stops a part of the recording and is recorded; the script does not notice it. No thread is started,
and a GPU is never waited for within a step.
"""

from __future__ import annotations

import atexit
import functools
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

_clock = time.perf_counter_ns
_FLUSH_NS = 450_000_000
_EXIT_POLL_S = 2.0  # how long the exit waits for the times of the last steps on a GPU
_MAX_FILE_BYTES = 128 * 2**20
_MAX_OPTIMIZERS = 64  # that live at the same time
_MAX_PENDING = 10_000  # events of a GPU
#: Environment variables of launchers, by what they say.
_LAUNCHERS = {
    "rank": ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"),
    "local_rank": ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"),
    "env_world_size": ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"),
    "local_world_size": (
        "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS",
        "SLURM_STEP_TASKS_PER_NODE",
    ),
}  # fmt: skip
_PRECISIONS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "float64": "fp64"}
#: What the classes in use have shown; it survives a fork.
_seen: set[str] = set()
_autocast: dict[str, str] = {}


class _Optimizer:
    """The steps of one optimizer."""

    def __init__(self, index: int, optimizer: Any, total: int, unknown: int) -> None:
        self.index, self.reference = index, weakref.ref(optimizer)
        self.steps = 0  # written and unwritten
        self.ends_ns: list[int] = []
        self.samples: list[int | None] = []
        self.total, self.unknown = total, unknown  # of the recorder, at the last step
        parameters = optimizer.param_groups[0]["params"]
        self.device = _DeviceTimes() if parameters and parameters[0].is_cuda else None


class _DeviceTimes:
    """When a GPU has ended each step, by events that are polled later."""

    def __init__(self, event: Callable[[], Any] | None = None) -> None:
        torch: Any = sys.modules["torch"]
        self._new = event or (lambda: torch.cuda.Event(enable_timing=True))
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
        # Samples that loaders have given since the last step, by iterator; None if unknown.
        self.fetched: dict[int, tuple[int | None, int]] = {}
        self.last_iterator = 0
        self.samples = self.unknown = self.batches = 0

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
        own = _Optimizer(self.next_index, optimizer, self.samples, self.unknown)
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
        if self.fetched:
            samples, batches = self.fetched.get(self.last_iterator, (0, 0))
            self.unknown += samples is None
            self.samples += samples or 0
            self.batches += batches
            self.fetched.clear()
        known = self.unknown == own.unknown and "samples" not in self.off
        own.samples.append(self.samples - own.total if known else None)
        own.total, own.unknown = self.samples, self.unknown
        own.ends_ns.append(now_ns)
        own.steps += 1
        self.steps += 1
        if now_ns >= self.next_flush_ns:
            self.flush()
            self.next_flush_ns = _clock() + _FLUSH_NS

    # Samples

    def index_drawn(self, iterator: Any, index: Any) -> None:
        noted = iterator.__dict__.get("_wattlaw")
        if noted is None or noted[0] is not iterator._sampler_iter:
            noted = iterator._wattlaw = (iterator._sampler_iter, deque(), self.steps)
        noted[1].append(len(index) if isinstance(index, (list, tuple)) else None)

    def batch_fetched(self, iterator: Any, data: Any, *, is_evaluation: bool) -> None:
        noted = iterator.__dict__.get("_wattlaw")
        size = noted[1].popleft() if noted is not None and noted[1] else None
        if is_evaluation:
            return
        if size and iterator._dataset_kind:  # of an iterable data set the last batch may be smaller
            size = min(size, _leading_size(data) or size)
        before, batches = self.fetched.get(id(iterator), (0, 0))
        total = None if size is None or before is None else before + size
        self.fetched[id(iterator)] = (total, batches + 1)
        self.last_iterator = id(iterator)

    def loader_exhausted(self, iterator: Any) -> None:
        """Forget a loader that has ended without a step since its first batch: an evaluation's."""
        noted = iterator.__dict__.get("_wattlaw")
        if noted is not None and noted[2] == self.steps:
            self.fetched.pop(id(iterator), None)

    # Facts

    def facts(self) -> dict[str, Any]:
        torch: Any = sys.modules["torch"]
        facts: dict[str, Any] = {"type": "facts", "step": self.steps, "batches": self.batches}
        world_size = None
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            world_size = distributed.get_world_size()
            facts["rank"], facts["backend"] = distributed.get_rank(), distributed.get_backend()
        elif "horovod.torch" in sys.modules and sys.modules["horovod.torch"].is_initialized():
            world_size = sys.modules["horovod.torch"].size()
            facts["rank"], facts["backend"] = sys.modules["horovod.torch"].rank(), "horovod"
            _seen.add("ddp")
        facts["world_size"] = world_size
        if self.next_facts <= 100:
            self.parameters = _parameters(self.optimizers.values(), world_size or 1)
        facts.update(self.parameters)
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            facts["peak_memory_bytes"] = torch.cuda.max_memory_allocated()
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
        host = os.environ.get("WATTLAW_HOST") or socket.gethostname()
        name = f"steps.{host.replace('/', '_')}.{os.getpid()}"
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
            "host": os.environ.get("WATTLAW_HOST") or socket.gethostname(),
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
            records.append({
                "type": "steps", "optimizer": own.index, "first": own.steps - count,
                "us": [ends_us[0], *gaps_us],
                "samples": samples[0] if len(set(samples)) == 1 else samples,
            })  # fmt: skip
            del own.ends_ns[:count], own.samples[:count]
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


def _leading_size(data: Any) -> int | None:
    """Return the first dimension that the tensors of a batch share."""
    if hasattr(data, "values"):
        parts = [*data.values()]
    else:
        parts = [*data] if isinstance(data, (list, tuple)) else [data]
    sizes = {int(part.shape[0]) for part in parts if getattr(part, "shape", None)}
    return sizes.pop() if len(sizes) == 1 else None


def _parameters(optimizers: Any, world_size: int) -> dict[str, Any]:
    """Return what the parameters of the optimizers show of the model and of the parallelism."""
    parameters: dict[int, Any] = {}
    for own in optimizers:
        optimizer = own.reference()
        for group in optimizer.param_groups if optimizer is not None else ():
            parameters.update((id(p), p) for p in group["params"] if p.requires_grad)
    count_by_dtype: dict[str, int] = {}
    count = gradient_bytes = 0
    devices, tensors = set(), [*parameters.values()]
    distributed = [p for p in tensors if type(p).__name__ == "DTensor"]
    for parameter in tensors:
        count += parameter.numel()
        gradient_bytes += parameter.numel() * parameter.element_size()
        dtype = str(parameter.dtype).rpartition(".")[2]
        count_by_dtype[dtype] = count_by_dtype.get(dtype, 0) + parameter.numel()
        devices.add(str(parameter.device))
    if any(sum(not q.is_replicate() for q in p.placements) > 1 for p in distributed) or (
        distributed and "fsdp" not in _seen
    ):
        _seen.add("tensor")
    is_sharded = bool(_seen & {"fsdp", "deepspeed"})
    dtype = max(count_by_dtype, key=lambda name: count_by_dtype[name], default="")
    device = sorted(devices)[0].partition(":")[0] if devices else None
    precision = _PRECISIONS.get(_autocast.get("dtype", ""))
    if precision is None and not is_sharded:  # these cast the parameters themselves
        precision = _PRECISIONS.get(dtype)
        matmul = sys.modules["torch"].backends.cuda.matmul
        if precision == "fp32" and device == "cuda" and matmul.allow_tf32:
            precision = "tf32"
    order = ("pipeline", "tensor", "deepspeed", "fsdp", "ddp")
    parallelism = next((kind for kind in order if kind in _seen), None)
    if parallelism is None and world_size == 1 and len(devices) < 2 and "other" not in _seen:
        parallelism = "none"
    is_known = not is_sharded or len(distributed) == len(tensors)
    return {
        "parameters": count if is_known else None,
        "gradient_bytes": gradient_bytes if is_known else None,
        "precision": precision,
        "device": device,
        "parallelism": parallelism,
    }


_recorder = _Recorder()
os.register_at_fork(after_in_child=_recorder.reset)


@atexit.register
def end() -> None:
    """Write the last steps; a second call does nothing."""
    try:
        if _recorder.steps and not _recorder.has_ended:
            _recorder.has_ended = True
            stop_s = time.monotonic() + _EXIT_POLL_S
            for own in _recorder.optimizers.values():
                while own.device is not None and "device" not in _recorder.off:
                    if not own.device.poll(_MAX_PENDING) or time.monotonic() > stop_s:
                        break
                    time.sleep(0.01)
            _recorder.flush(is_end=True)
    except Exception as error:
        _recorder.fail("end", error)


def _after_step(optimizer: Any, _arguments: Any, _named: Any) -> None:
    if "steps" not in _recorder.off:
        try:
            _recorder.step(optimizer)
        except Exception as error:
            _recorder.fail("steps", error)
            _recorder.flush()


_after_step._torchdynamo_disable = True  # type: ignore[attr-defined] # a compiled step calls it


def count_steps(module: Any) -> None:
    """Count the steps of all optimizers (``torch.optim.optimizer``)."""
    module.register_optimizer_step_post_hook(_after_step)


def count_samples(module: Any) -> None:
    """Count the samples that loaders give (``torch.utils.data.dataloader``)."""
    iterators = module._BaseDataLoaderIter
    next_index, next_batch = iterators._next_index, iterators.__next__
    has_gradients = sys.modules["torch"].is_grad_enabled

    @functools.wraps(next_index)
    def _next_index(self: Any) -> Any:
        index = next_index(self)
        try:
            _recorder.index_drawn(self, index)
        except Exception as error:
            _recorder.fail("samples", error)
        return index

    @functools.wraps(next_batch)
    def __next__(self: Any) -> Any:  # noqa: N807 - the name of what it replaces
        try:
            data = next_batch(self)
        except StopIteration:
            _recorder.loader_exhausted(self)
            raise
        try:
            _recorder.batch_fetched(self, data, is_evaluation=not has_gradients())
        except Exception as error:
            _recorder.fail("samples", error)
        return data

    iterators._next_index, iterators.__next__ = _next_index, __next__


def _observe(owner: Any, name: str, see: Callable[[Any], bool]) -> None:
    """Show a method's objects to ``see`` until it returns True; then the method is as before."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def method(self: Any, *arguments: Any, **named: Any) -> Any:
        try:
            if see(self) and owner.__dict__.get(name) is method:
                setattr(owner, name, original)
        except Exception as error:
            _recorder.fail(f"{owner.__name__}.{name}", error)
        return original(self, *arguments, **named)

    setattr(owner, name, method)


def _sees(kind: str, name: str) -> Callable[[Any], None]:
    """Return a function that notes the first object of a module's class ``name``."""

    def see(_: Any) -> bool:
        _seen.add(kind)
        return True

    return lambda module: _observe(getattr(module, name), "__init__", see)


def see_autocast(module: Any) -> None:
    """Note the data type of the first enabled autocast (``torch.amp.autocast_mode``)."""

    def see(autocast: Any) -> bool:
        if autocast._enabled:
            _autocast["dtype"] = str(autocast.fast_dtype).rpartition(".")[2]
        return bool(autocast._enabled)

    _observe(module.autocast, "__enter__", see)


see_ddp = _sees("ddp", "DistributedDataParallel")
see_data_parallel = _sees("other", "DataParallel")
see_fsdp = _sees("fsdp", "FullyShardedDataParallel")
see_fully_shard = _sees("fsdp", "FSDPState")
see_pipeline = _sees("pipeline", "_PipelineStageBase")
see_deepspeed = _sees("deepspeed", "DeepSpeedEngine")
