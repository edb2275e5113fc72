"""Times on the device that computes: ends of steps, and waits for gradients of other ranks."""

from __future__ import annotations

import sys
import time
from collections import deque
from typing import Any

clock = time.perf_counter_ns
MAX_PENDING = 10_000  # events of a GPU
GRADIENT_WAITS = "gradient waits"  # a part that can fail


class DeviceTimes:
    """When a GPU has ended each step, by events that are polled later.

    ``gpu`` is torch's module of that kind of device. ``device`` need not be the current one.
    """

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
    """What DistributedDataParallel waits for in each backward pass: other ranks' gradients.

    A wait lasts from the moment at which this rank has computed all gradients, by a callback of
    autograd, to the one after the callback in which DDP waits: autograd runs them in the order in
    which they came, and DDP's comes with the last gradient. On a GPU both are events, of which
    every second duration is a wait. Communication hooks are timed as they are.
    """

    def __init__(self, recorder: Any) -> None:
        self.recorder = recorder
        self.passes = self.written = 0  # backward passes that have ended, waits that are written
        self.new_us: list[float] = []
        self.gpu: DeviceTimes | None = None
        self._device: Any = None
        self._queue: Any = None  # appends to the callbacks of a backward pass that is running
        self._begin_ns: int | None = None

    @_guarded
    def watch(self, ddp: Any) -> None:
        if getattr(ddp, "_use_python_reducer", False):
            return  # its backward pass is compiled, also what is called in it
        torch: Any = sys.modules["torch"]
        if self._device is None:
            self._queue = torch.autograd.Variable._execution_engine.queue_callback
            self._device = device = ddp.device
            if device.type in ("cuda", "xpu"):
                self.gpu = DeviceTimes(getattr(torch, device.type), device)
        if ddp.is_multi_device_module or ddp.device != self._device:
            raise RuntimeError("the models of a process are on several devices")
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
        if self._begin_ns is None:  # the first of several callbacks
            if self.gpu is not None and self.gpu.is_capturing():
                raise RuntimeError("a backward pass was captured in a CUDA graph")
            self._begin_ns = self._mark()
            self._queue(self._received)

    @_guarded
    def _received(self) -> None:
        end_ns = self._mark()
        if self.gpu is None and self._begin_ns is not None:
            self.new_us.append((end_ns - self._begin_ns) / 1e3)
        self._begin_ns = None
        self.passes += 1

    def _mark(self) -> int:
        now_ns = clock()
        if self.gpu is not None:
            self.gpu.mark(now_ns)
        return now_ns

    def take_us(self) -> list[float]:
        """Return the waits that are known and not written, and forget them."""
        if self.gpu is None:
            waits_us, self.new_us = self.new_us, []
        else:
            durations_us, self.gpu.durations_us = self.gpu.durations_us, []
            waits_us = durations_us[self.gpu.written % 2 :: 2]
            self.gpu.written += len(durations_us)
        self.written += len(waits_us)
        return waits_us
