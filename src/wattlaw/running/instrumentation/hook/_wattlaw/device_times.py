"""Times on the device that computes: ends of steps, and waits for gradients of other ranks."""

from __future__ import annotations

import functools
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

clock = time.perf_counter_ns
TORCH_GPUS = ("cuda", "xpu")  # torch's kinds, as in ``Meter.accelerator``
MAX_PENDING = 10_000  # events of a GPU
_MAX_MARKS = 10**6  # that are not written, as of an evaluation
GRADIENT_WAITS = "gradient waits"  # a part that can fail
#: Functions of FSDP that only wait on a CPU; on a GPU they start work in other streams.
_OTHER_STREAMS = ("unshard", "_post_backward_hook")


class DeviceTimes:
    """When a GPU, which need not be the current one, has ended each step, by polled events."""

    def __init__(self, gpu: Any, device: Any) -> None:
        self._gpu, self._device = gpu, device
        self._pending: deque[tuple[int, Any]] = deque()
        self._free: list[Any] = []
        self._last: Any = None  # the newest event that has happened
        self._since_first_ns = 0.0
        self.low_ns, self.high_ns = -(2**62), 2**62  # bounds of the first event's time
        self.durations_us: list[float] = []  # of the steps that have ended and are not written
        self.written = 0

    def is_capturing(self) -> bool:
        """Say whether a graph is captured: events must not be used then."""
        is_capturing = getattr(self._gpu, "is_current_stream_capturing", None)
        return is_capturing is not None and bool(is_capturing())

    def mark(self, now_ns: int) -> None:
        if len(self._pending) >= MAX_PENDING:
            raise RuntimeError("the GPU is too far behind")
        event = self._free.pop() if self._free else self._gpu.Event(enable_timing=True)
        event.record(self._gpu.current_stream(self._device))
        self._pending.append((now_ns, event))
        self.poll(2)

    def poll(self, most: int) -> bool:
        while self._pending and most and self._pending[0][1].query():
            recorded_ns, event = self._pending.popleft()
            if self._last is not None:
                duration_us = self._last.elapsed_time(event) * 1e3
                self._since_first_ns += duration_us * 1e3
                self.durations_us.append(round(duration_us, 1))
                self._free.append(self._last)
            self._last = event
            self.low_ns = max(self.low_ns, recorded_ns - int(self._since_first_ns))
            self.high_ns = min(self.high_ns, clock() - int(self._since_first_ns))
            most -= 1
        return bool(self._pending)


def _guarded(method: Any) -> Any:
    """Have a failure end the timing, and not the script."""

    def guarded(self: GradientWaits, *arguments: Any) -> None:
        if GRADIENT_WAITS not in self.recorder.off:
            try:
                method(self, *arguments)
            except Exception as error:
                self.recorder.fail(GRADIENT_WAITS, error)

    return guarded


class GradientWaits:
    """What each backward pass waits for other ranks: their gradients and, of FSDP, parameters.

    With DistributedDataParallel a wait lasts from the moment at which this rank has computed all
    gradients, by a callback of autograd, to the one after the callback in which DDP waits: autograd
    runs them in the order in which they came, and DDP's comes with the last gradient. With FSDP the
    waits are calls of its own functions, also those of the forward passes before. On a GPU begins
    and ends are events, of which every second duration is a wait.
    """

    def __init__(self, recorder: Any) -> None:
        self.recorder = recorder
        self.passes = self.written = 0  # backward passes that have ended, waits that are written
        self.gpu: DeviceTimes | None = None
        self.device: Any = None
        self._queue: Any = None  # appends to the callbacks of a backward pass that is running
        self._depth = self._marks = self._taken = self._last_ns = 0
        self._ends: deque[int] = deque()  # marks until the end of each pass that is not written
        self._host_us: list[float] = []  # between marks

    def _use(self, device: Any, is_one_of_several: bool = False) -> None:
        if self.device is None:
            self.device = device
            if device.type in TORCH_GPUS:
                self.gpu = DeviceTimes(getattr(sys.modules["torch"], device.type), device)
        if is_one_of_several or device != self.device:
            raise RuntimeError("the models of a process are on several devices")

    @_guarded
    def watch(self, ddp: Any) -> None:
        if getattr(ddp, "_use_python_reducer", False):
            return  # its backward pass is compiled, also what is called in it
        torch: Any = sys.modules["torch"]
        self._queue = torch.autograd.Variable._execution_engine.queue_callback
        self._use(ddp.device, ddp.is_multi_device_module)
        trained = [p for p in ddp._module_parameters if p.requires_grad]
        with torch.enable_grad():
            for parameter in (trained[0], trained[-1]):  # one of them may be unused
                node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
                node.register_prehook(self._begin)  # DDP keeps this node, which adds the gradient

    @_guarded
    def _begin(self, _: Any) -> None:
        self._queue(self._computed)

    @_guarded
    def _computed(self) -> None:
        if not self._depth:  # the first of several callbacks
            self.enter(self)
            self._queue(functools.partial(self.leave, True))

    @_guarded
    def watch_calls(self, module: Any, calls: Sequence[tuple[str, str]]) -> None:
        found = [(sys.modules.get(owner) or getattr(module, owner), name) for owner, name in calls]
        originals = [(call, getattr(*call)) for call in found]  # all of them, or none
        if hasattr(originals[0][1], "_is_timed"):
            return
        for call, original in originals:
            _time_calls(*call, original, self.recorder, is_end=call == found[-1])

    @_guarded
    def enter(self, state: Any) -> None:
        self._use(getattr(state, "compute_device", None) or getattr(state, "device", self.device))
        self._depth += 1
        if self._depth == 1:
            if self._marks - self._taken > _MAX_MARKS:
                raise RuntimeError("too many waits without an optimizer step")
            if self.gpu is not None and self.gpu.is_capturing():
                raise RuntimeError("a backward pass was captured in a CUDA graph")
            self._mark()

    @_guarded
    def leave(self, is_end: bool) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._mark()
        if is_end:
            self.passes += 1
            self._ends.append(self._marks + self._marks % 2)

    def _mark(self) -> None:
        now_ns = clock()
        if self.gpu is not None:
            self.gpu.mark(now_ns)
        elif self._marks:
            self._host_us.append((now_ns - self._last_ns) / 1e3)
        self._last_ns = now_ns
        self._marks += 1

    def take_us(self) -> list[float]:
        """Return the waits of passes that are known and not written, and forget them."""
        durations_us = self._host_us if self.gpu is None else self.gpu.durations_us
        waits_us = []
        while self._ends and (count := self._ends[0] - 1 - self._taken) <= len(durations_us):
            self._ends.popleft()
            waits_us.append(sum(durations_us[self._taken % 2 : count : 2]))
            del durations_us[:count]
            self._taken += count
        self.written += len(waits_us)
        return waits_us


def _time_calls(owner: Any, name: str, original: Any, recorder: Any, *, is_end: bool) -> None:
    """Time the calls of a function as waits, until the timing fails; then it is as before."""

    @functools.wraps(original)
    def call(state: Any, *arguments: Any, **named: Any) -> Any:
        waits = recorder.waits
        if GRADIENT_WAITS in recorder.off and owner.__dict__.get(name) is call:
            setattr(owner, name, original)
        if name in _OTHER_STREAMS and waits.gpu is not None:
            return original(state, *arguments, **named)
        waits.enter(state)
        try:
            return original(state, *arguments, **named)
        finally:
            waits.leave(is_end)

    call._torchdynamo_disable = call._is_timed = True  # type: ignore[attr-defined]
    setattr(owner, name, call)
