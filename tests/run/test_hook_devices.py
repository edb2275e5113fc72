"""The device on which the hook times a training. No GPU is here: a stand-in notes what is asked."""

import sys
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from wattlaw.running.instrumentation.hook._wattlaw import step_hook as hook
from wattlaw.running.instrumentation.records import StepsFolder


class Cuda:
    """Two GPUs, of which 0 is current. Each step takes 10 ms; ``done`` of them have ended."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.events_at: list[str] = []  # streams
        self.is_capturing = self.is_broken = False
        self.made, self.done = 0, 1000

    def is_current_stream_capturing(self) -> bool:
        self.asked.append(("capturing", ""))
        return self.is_capturing

    def current_stream(self, device: object) -> str:
        return f"the stream of {device}"

    def max_memory_allocated(self, device: object) -> int:
        self.asked.append(("peak", str(device)))
        return 1000 * (torch.device(device).index + 1)

    def get_device_properties(self, device: object) -> SimpleNamespace:
        return SimpleNamespace(total_memory=50_000)

    def Event(self, *, enable_timing: bool) -> SimpleNamespace:  # noqa: N802 - torch's name
        assert enable_timing
        self.made += 1
        event = SimpleNamespace()

        def record(stream: str) -> None:
            if self.is_broken:
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            self.asked.append(("record", stream))
            self.events_at.append(stream)
            event.number = len(self.events_at)

        event.record, event.query = record, lambda: event.number <= self.done
        event.elapsed_time = lambda other: 10.0
        return event


class Parameter:
    dtype, requires_grad = torch.float32, True

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)

    def numel(self) -> int:
        return 3

    def element_size(self) -> int:
        return 4


class Optimizer:
    def __init__(self, *groups: list[str]) -> None:
        self.param_groups = [{"params": [Parameter(d) for d in devices]} for devices in groups]


@pytest.fixture
def cuda(monkeypatch):
    found = Cuda()
    fake = SimpleNamespace(
        get_num_threads=lambda: 1,
        cuda=found, xpu=None, distributed=torch.distributed, __version__="2",
        version=SimpleNamespace(cuda=None, hip=None),
        backends=SimpleNamespace(cuda=SimpleNamespace(matmul=SimpleNamespace(allow_tf32=False))),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "torch", fake)
    return found


@pytest.fixture
def recorder(tmp_path, monkeypatch, cuda):
    monkeypatch.setenv("WATTLAW_STEPS", str(tmp_path))
    return hook._Recorder()


def recorded(recorder: hook._Recorder, folder: object) -> object:
    recorder.end()
    (process,) = StepsFolder(folder).read()
    return process


@pytest.mark.parametrize(
    ("groups", "timed", "peak"),
    [
        ([["cuda:1"]], "cuda:1", 2000),
        ([["cpu", "cuda:1"], ["cuda:0"]], "cuda:1", 2000),
        ([["cpu"]], None, None),
    ],
)
def test_steps_are_timed_where_the_parameters_are(tmp_path, cuda, recorder, groups, timed, peak):
    optimizer = Optimizer(*groups)
    for _ in range(4):
        recorder.step(optimizer)
    process = recorded(recorder, tmp_path)
    assert (process.steps, process.peak_memory_bytes, process.problems) == (4, peak, ())
    assert process.gpu_memory_bytes == (peak and 50_000)
    if timed is None:
        assert cuda.asked == []
    else:
        streams = {what for name, what in cuda.asked if name == "record"}
        assert streams == {f"the stream of {timed}"}
        assert [*(process.step_end_s[1:] - process.step_end_s[:-1]).round(3)] == [0.01] * 3


def test_events_of_a_gpu_that_is_late_are_polled_in_order_and_used_again(tmp_path, cuda, recorder):
    optimizer, late = Optimizer(["cuda:1"]), 6
    for _ in range(20):
        cuda.done = max(0, len(cuda.events_at) - late)
        recorder.step(optimizer)
    assert cuda.made < 10
    (own,) = recorder.optimizers.values()
    assert own.gpu.durations_us == [10_000.0] * len(own.gpu.durations_us)
    assert len(own.gpu.durations_us) == 19 - late - 1  # between those that had ended by then
    cuda.done = 1000
    process = recorded(recorder, tmp_path)
    assert [*(process.step_end_s[1:] - process.step_end_s[:-1]).round(3)] == [0.01] * 19


def test_a_gpu_that_fails_leaves_the_times_of_the_host(tmp_path, cuda, recorder):
    optimizer, other = Optimizer(["cuda:1"]), Optimizer(["cuda:0"])
    for number in range(6):
        cuda.is_broken = number == 3
        recorder.step(optimizer)
        cuda.is_broken = False
        recorder.step(other)
    process = recorded(recorder, tmp_path)
    assert process.steps == 6
    assert [problem.split(":")[0] for problem in process.problems] == ["device"]
    assert cuda.asked.count(("record", "the stream of cuda:0")) == 6  # the other is not affected


def test_an_optimizer_in_a_cuda_graph_ends_its_recording_with_a_note(tmp_path, cuda, recorder):
    graphed, other = Optimizer(["cuda:1"]), Optimizer(["cpu"])
    for number in range(8):
        cuda.is_capturing = number == 3
        before = len(cuda.asked)
        if number < 4:  # replays run no Python
            recorder.step(graphed)
        if number == 3:
            assert cuda.asked[before:] == [("capturing", "")]  # events would break the capture
        recorder.step(other)
    process = recorded(recorder, tmp_path)
    assert process.steps == 8
    assert [problem.split(":")[0] for problem in process.problems] == ["CUDA graph"]


@pytest.mark.parametrize("count", [1, 3])
def test_waits_of_a_pass_on_a_gpu_are_every_second_time_between_events(
    tmp_path, cuda, recorder, monkeypatch, count
):
    """Events are 10 ms apart; the last of a killed process have not happened."""
    queued, begins = [], []
    engine = SimpleNamespace(queue_callback=queued.append)
    autograd = SimpleNamespace(Variable=SimpleNamespace(_execution_engine=engine))
    monkeypatch.setattr(sys.modules["torch"], "autograd", autograd, raising=False)
    monkeypatch.setattr(sys.modules["torch"], "enable_grad", nullcontext, raising=False)
    node = SimpleNamespace(register_prehook=begins.append)
    expanded = SimpleNamespace(grad_fn=SimpleNamespace(next_functions=[(node, 0)]))
    parameter = SimpleNamespace(requires_grad=True, expand_as=lambda _: expanded)
    recorder.waits.watch(
        SimpleNamespace(
            device=torch.device("cuda:1"),
            is_multi_device_module=False,
            _module_parameters=[parameter, parameter],
        )
    )
    optimizer, cuda.done = Optimizer(["cpu"]), 27
    for _ in range(15):
        for _ in range(count - 1):  # as of FSDP
            recorder.waits.enter(SimpleNamespace(device=torch.device("cuda:1")))
            recorder.waits.leave(False)
        for begin in begins:
            begin(None)
        while queued:
            queued.pop(0)()
        recorder.step(optimizer)
    recorder.flush()
    (process,) = StepsFolder(tmp_path).read()
    assert process.problems == ()
    assert {what for name, what in cuda.asked if name == "record"} == {"the stream of cuda:1"}
    known = 27 // (2 * count)
    assert [*process.gradient_wait_s[:known].round(6)] == [0.01 * count] * known
    assert np.isnan(process.gradient_wait_s[known:]).all()
