"""Counts what a workload asks of any hardware, from the workload itself."""

import copy
import math
import sys
from collections import defaultdict
from collections.abc import Iterable
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from wattlaw import machine
from wattlaw.errors import NotAvailable, one_line
from wattlaw.simulator.profile import Kernels, Phase, WorkloadProfile
from wattlaw.study.model import WorkloadSpec
from wattlaw.training.flops import first_batch, is_stacked
from wattlaw.training.profiling.input import measure_input
from wattlaw.training.profiling.kernels import AsOnGpu, Kernel, Recorder
from wattlaw.training.ranks import to_device
from wattlaw.workloads import catalogue
from wattlaw.workloads.workload import Dataset, Workload

#: As training.flops takes them: samples of one shape are alike, others make a mean.
_ALIKE, _DIFFERENT = 2, 32
_SINGLES = 64  # samples whose work is compared
_GLOBAL_BATCH = 256  # for a learning rate; no operation depends on it
_MOST_ROWS = 150
_ALIKE_WITHIN = 1.1  # kernels are merge_kernels when they differ by about this factor
_READY_LEVELS = 15
_READY_BATCH = 32  # samples at which bytes of the backward pass are compared
_DIGITS = 7


class KernelScaling(NamedTuple):
    """One kernel as a straight line over the batch."""

    phase: Phase
    flops_per_sample: float
    bytes_per_sample: float
    bytes_fixed: float


class Trace(NamedTuple):
    """The kernels of one step at one batch, and how many of backward each gradient waits for."""

    kernels: tuple[tuple[Phase, Kernel], ...]
    ready: tuple[tuple[int, int], ...]  # kernels of backward that are done, bytes of a gradient


def measure_profile(spec: WorkloadSpec) -> WorkloadProfile:
    """Return what a workload asks of any hardware, counted here.

    Forward pass with loss, backward pass and the optimiser's update run at two batches, of some
    samples and of the same samples twice: for each kernel that a GPU would launch a straight line
    goes through both, which gives its bytes whatever the batch and its bytes and operations per
    sample. The model is copied to the ``meta`` device, which computes shapes and no numbers, or to
    the CPU where that cannot be. Kernels that are alike make one row. Updates are PyTorch's
    multi-tensor ones (``foreach``), in the second step, when their state is there.

    Not counted: layouts that cuDNN changes, what it looks for, copies of gradients into the
    buckets of DistributedDataParallel, caches, and pointwise operations (their bytes are).

    Parameters
    ----------
    spec
        A registered workload and its options.

    Raises
    ------
    wattlaw.errors.BadInput
        No such workload or option, or data that cannot be read.
    wattlaw.errors.NotAvailable
        Its operations cannot be counted, or a package is missing.
    """
    spec = catalogue.reduced(spec)
    workload = catalogue.build(spec)
    model, dataset = workload.model(), workload.training_data()
    device, samples, lines, trace = _counted(workload, model, dataset)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    spread = work_cv(workload, model, dataset, device)
    read = measure_input(spec, workload, dataset)
    where = "shapes only (meta device)" if device.type == "meta" else str(device)
    return WorkloadProfile(
        workload=spec.name,
        options=spec.options,
        parameters=sum(parameter.numel() for parameter in trained),
        gradient_bytes=sum(parameter.numel() * parameter.element_size() for parameter in trained),
        layers=sum(any(True for _ in one.parameters(recurse=False)) for one in model.modules()),
        flops_per_sample=_rounded(sum(line.flops_per_sample for line in lines)),
        work_cv=round(spread, 4),
        stored_bytes_per_sample=_rounded(read.stored_bytes_per_sample),
        input_cpu_s_per_sample=float(f"{read.cpu_s_per_sample:.3g}"),
        reads_files=read.reads_files,
        kernels=merge_kernels(lines),
        gradients_ready=_gradients_ready(trace, lines),
        counted=f"PyTorch {torch.__version__}, {where}, batches of {samples} and {2 * samples} "
        f"samples; bytes as float32; input by one core of {machine.processor()}: {read.words}",
    )


def _counted(
    workload: Workload, model: nn.Module, dataset: Dataset
) -> tuple[torch.device, int, list[KernelScaling], Trace]:
    few, many = min(_ALIKE, len(dataset)), min(_DIFFERENT, len(dataset))
    samples = few if is_stacked(first_batch(dataset, few), few) else many
    small, large = first_batch(dataset, samples), first_batch(dataset, samples, times=2)
    for device in (torch.device("meta"), torch.device("cpu")):
        try:
            once = trace_step(workload, model, small, device)
            twice = trace_step(workload, model, large, device)
            return device, samples, _lines(once, twice, samples), once
        except Exception as error:  # a model may work on its own device only
            trouble = one_line(error)[:300]
            print(f"kernels cannot be counted on {device}: {trouble}", file=sys.stderr)
    raise NotAvailable(f"profile: the workload's operations cannot be counted ({trouble})")


def trace_step(workload: Workload, model: nn.Module, data: Any, device: torch.device) -> Trace:
    """Return the kernels of one step on a batch; the model is left as it is."""
    kernels: list[tuple[Phase, Kernel]] = []
    ready: list[tuple[int, int]] = []
    copied = _copied(model, device).train()
    forward, backward = Recorder(device), Recorder(device)
    data = to_device(data, device)
    with forward, AsOnGpu():
        loss = workload.loss(copied, data)
    kernels += (("forward", one) for one in forward.kernels)

    def note(parameter: torch.Tensor) -> None:
        ready.append((len(backward.kernels), parameter.numel() * parameter.element_size()))

    for parameter in copied.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(note)  # type: ignore[no-untyped-call]
    with backward:
        loss.backward()  # type: ignore[no-untyped-call]
    kernels += (("backward", one) for one in backward.kernels)
    kernels += (("optimizer", one) for one in _update(workload, model))
    return Trace(tuple(kernels), tuple(ready))


def _update(workload: Workload, model: nn.Module) -> list[Kernel]:
    """Return the kernels of the optimiser's second step; the first one makes its state."""
    meta = torch.device("meta")
    copied = _copied(model, meta)
    optimizer = workload.optimizer(copied, _GLOBAL_BATCH, fused=None)
    for group in optimizer.param_groups:
        if "foreach" in group:
            group["foreach"] = True
    for parameter in copied.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.empty_like(parameter)
    optimizer.step()
    recorder = Recorder(meta)
    with recorder:
        optimizer.step()
    return recorder.kernels


def _copied(model: nn.Module, device: torch.device) -> nn.Module:
    """Return a copy on a device; parameters that are shared stay so, as ``to`` does not on meta."""
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        there = torch.empty_like(parameter, device=device)
        if device.type != "meta":
            there.copy_(parameter.detach())
        memo[id(parameter)] = nn.Parameter(there.detach(), parameter.requires_grad)
    for buffer in model.buffers():
        memo[id(buffer)] = buffer.detach().to(device, copy=True)
    return copy.deepcopy(model, memo)


def _lines(once: Trace, twice: Trace, samples: int) -> list[KernelScaling]:
    """Return the straight line of each kernel through a batch and its double."""
    if [one.name for _, one in once.kernels] != [one.name for _, one in twice.kernels]:
        raise NotAvailable("its operations are others in a batch of twice the size")
    lines = []
    for (phase, small), (_, large) in zip(once.kernels, twice.kernels, strict=True):
        flops = max(large.flops - small.flops, 0.0) / samples
        per_sample = max(large.moved_bytes - small.moved_bytes, 0.0) / samples
        fixed = max(small.moved_bytes - per_sample * samples, 0.0)
        lines.append(KernelScaling(phase, flops, per_sample, fixed))
    return lines


def merge_kernels(lines: Iterable[KernelScaling]) -> tuple[Kernels, ...]:
    """Return rows of kernels that are alike: of one phase, each quantity within about 10 %.

    A row has the means of its kernels, so that sums over all kernels stay as they are. Where
    there would be more than 150 rows, kernels that differ more are taken as alike.
    """
    lines = list(lines)
    factor = _ALIKE_WITHIN
    while True:
        rows: dict[tuple[Any, ...], list[KernelScaling]] = defaultdict(list)
        for line in lines:
            cell = (_step(amount, factor) for amount in line[1:])
            rows[(line.phase, *cell)].append(line)
        if len(rows) <= _MOST_ROWS:
            break
        factor *= _ALIKE_WITHIN
    return tuple(_row(alike) for alike in rows.values())


def _step(amount: float, factor: float) -> int | None:
    return round(math.log(amount) / math.log(factor)) if amount > 0 else None


def _row(alike: list[KernelScaling]) -> Kernels:
    flops, per_sample, fixed = np.mean([line[1:] for line in alike], axis=0).tolist()
    return Kernels(
        phase=alike[0].phase,
        count=float(len(alike)),
        flops_per_sample=_rounded(flops),
        bytes_per_sample=_rounded(per_sample),
        bytes_fixed=_rounded(fixed),
    )


def _gradients_ready(
    trace: Trace, lines: Iterable[KernelScaling]
) -> tuple[tuple[float, float], ...]:
    """Return how much of the gradients is ready as the backward pass goes on.

    Gradients become ready in steps. Kept are the foot and the top of those steps in which their
    share passes a sixteenth, two sixteenths, and so on.
    """
    backward = (line for line in lines if line.phase == "backward")
    sizes = (line.bytes_fixed + _READY_BATCH * line.bytes_per_sample for line in backward)
    done = [0.0, *accumulate(sizes)]
    ready = [0.0, *accumulate(size for _, size in trace.ready)]
    points = [(0.0, 0.0)]
    for level in range(1, _READY_LEVELS + 1):
        number = int(np.searchsorted(ready, ready[-1] * level / (_READY_LEVELS + 1)))
        share = done[trace.ready[number - 1][0]] / done[-1]
        points += [(share, ready[place] / ready[-1]) for place in (number - 1, number)]
    rounded = [(round(done, 4), round(of, 4)) for done, of in (*points, (1.0, 1.0))]
    return tuple(sorted(set(rounded)))


def work_cv(workload: Workload, model: nn.Module, dataset: Dataset, device: torch.device) -> float:
    """Return standard deviation over mean of the operations of the first samples, each alone."""
    few = min(_ALIKE, len(dataset))
    if is_stacked(first_batch(dataset, few), few):
        return 0.0
    copied = _copied(model, device).train()
    work = []
    for number in range(min(_SINGLES, len(dataset))):
        one = dataset.batch(np.array([number]), np.array([number], np.uint64))
        data = to_device(one, device)
        recorder = Recorder(device)
        with recorder, AsOnGpu():
            workload.loss(copied, data).backward()  # type: ignore[no-untyped-call]
        work.append(sum(one.flops for one in recorder.kernels))
    return float(np.std(work, ddof=1) / np.mean(work)) if len(work) > 1 else 0.0


def _rounded(amount: float) -> float:
    """Return a number with as many digits as a count is good for."""
    return float(f"{amount:.{_DIGITS}g}")
