"""Measures the profile of a workload: its kernels, gradients and input, for any hardware."""

import copy
import math
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils import _pytree as pytree

from wattlaw.common import machine
from wattlaw.common.errors import NotAvailable, one_line
from wattlaw.running.training.flops import first_batch, has_uniform_samples, representative_samples
from wattlaw.running.training.ranks import to_device
from wattlaw.study.model import WorkloadSpec
from wattlaw.workloads import catalogue
from wattlaw.workloads.profile import Kernels, Phase, WorkloadProfile
from wattlaw.workloads.workload import Dataset, RealInput, Workload
from wattlaw_simulator.profiling.kernel_counts import AsOnGpu, Kernel, Recorder

_SINGLE_SAMPLES = 64  # samples whose work is compared
_GLOBAL_BATCH = 256  # for a learning rate; no operation depends on it
_MOST_ROWS = 150
_MERGE_FACTOR = 1.1  # kernels are merged if they differ by less than about this factor
_READY_LEVELS = 15
_READY_BATCH = 32  # samples at which bytes of the backward pass are compared
_DIGITS = 7
#: Options of synthetic samples, which are invalid with files.
_SYNTHETIC_ONLY = ("train_samples", "evaluation_samples")
_PASSES, _MAX_SAMPLES = 5, 512  # how often samples are read, and how many of them


class KernelScaling(NamedTuple):
    """The operations and bytes of one kernel as a linear function of the batch size."""

    phase: Phase
    flops_per_sample: float
    bytes_per_sample: float
    bytes_fixed: float


class Trace(NamedTuple):
    """The kernels of one step at one batch size, when each gradient is ready, and activations."""

    kernels: tuple[tuple[Phase, Kernel], ...]
    ready: tuple[tuple[int, int], ...]  # finished backward kernels, bytes of the gradient
    saved_bytes: int  # what the forward pass keeps for the backward pass


def measure_profile(spec: WorkloadSpec) -> WorkloadProfile:
    """Return the profile of a workload, measured on this machine without a GPU.

    The forward pass with loss, the backward pass and the optimizer step run at two batch sizes:
    some samples, and the same samples twice. A line through both gives each kernel's fixed bytes
    and its bytes and operations per sample. A copy of the model on the ``meta`` device computes
    shapes without numbers; if that fails, a copy on the CPU is used. Similar kernels are merged
    into one row. The optimizer is PyTorch's multi-tensor one (``foreach``) in its second step, when
    its state exists.

    Not counted: layout changes and algorithm searches of cuDNN, copies of gradients into the
    buckets of DistributedDataParallel, caches, and pointwise operations (their bytes are counted).
    """
    spec = catalogue.without_defaults(spec)
    workload = catalogue.build(spec)
    model, dataset = workload.model(), workload.training_data()
    device, samples, kernels, (trace, twice) = _scale_kernels(workload, model, dataset)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    spread = work_cv(workload, model, dataset, device)
    read = measure_input(spec, workload, dataset)
    where = "shapes only (meta device)" if device.type == "meta" else str(device)
    return WorkloadProfile(
        workload=spec.name,
        options=spec.options,
        parameters=sum(parameter.numel() for parameter in trained),
        gradient_bytes=sum(parameter.numel() * parameter.element_size() for parameter in trained),
        layers=sum(any(True for _ in part.parameters(recurse=False)) for part in model.modules()),
        flops_per_sample=_rounded(sum(kernel.flops_per_sample for kernel in kernels)),
        activation_bytes_per_sample=_rounded((twice.saved_bytes - trace.saved_bytes) / samples),
        work_cv=round(spread, 4),
        stored_bytes_per_sample=_rounded(read.stored_bytes_per_sample),
        input_cpu_s_per_sample=float(f"{read.cpu_s_per_sample:.3g}"),
        reads_files=read.reads_files,
        kernels=merge_kernels(kernels),
        gradients_ready=_gradients_ready(trace, kernels),
        counted=f"PyTorch {torch.__version__}, {where}, batches of {samples} and {2 * samples} "
        f"samples; bytes as float32; input by one core of {machine.processor()}: {read.method}",
    )


def _scale_kernels(
    workload: Workload, model: nn.Module, dataset: Dataset
) -> tuple[torch.device, int, list[KernelScaling], tuple[Trace, Trace]]:
    samples = representative_samples(dataset)
    small, large = first_batch(dataset, samples), first_batch(dataset, samples, times=2)
    for device in (torch.device("meta"), torch.device("cpu")):
        try:
            once = trace_step(workload, model, small, device)
            twice = trace_step(workload, model, large, device)
            return device, samples, _scaling(once, twice, samples), (once, twice)
        except Exception as error:  # a model may work on its own device only
            reason = one_line(error)[:300]
            print(f"kernels cannot be counted on {device}: {reason}", file=sys.stderr)
    raise NotAvailable(f"profile: the workload's operations cannot be counted ({reason})")


def trace_step(workload: Workload, model: nn.Module, data: Any, device: torch.device) -> Trace:
    """Return the kernels of one step on a batch; the model is not changed."""
    kernels: list[tuple[Phase, Kernel]] = []
    ready: list[tuple[int, int]] = []
    copied = _copied(model, device).train()
    forward, backward = Recorder(device), Recorder(device)
    data = to_device(data, device)
    saved: dict[int, int] = {}

    def record_saved(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        saved[storage._cdata] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(record_saved, lambda tensor: tensor), forward, AsOnGpu():
        loss = workload.loss(copied, data)
    for own in (*copied.parameters(), *copied.buffers()):
        saved.pop(own.untyped_storage()._cdata, None)
    kernels += (("forward", kernel) for kernel in forward.kernels)

    def record_gradient(parameter: torch.Tensor) -> None:
        ready.append((len(backward.kernels), parameter.numel() * parameter.element_size()))

    for parameter in copied.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(record_gradient)  # type: ignore[no-untyped-call]
    with backward:
        loss.backward()  # type: ignore[no-untyped-call]
    kernels += (("backward", kernel) for kernel in backward.kernels)
    kernels += (("optimizer", kernel) for kernel in _optimizer_kernels(workload, model))
    return Trace(tuple(kernels), tuple(ready), sum(saved.values()))


def _optimizer_kernels(workload: Workload, model: nn.Module) -> list[Kernel]:
    """Return the kernels of the optimizer's second step; the first one creates its state."""
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
    """Return a copy on a device. Shared parameters stay shared, which ``to("meta")`` breaks."""
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        target = torch.empty_like(parameter, device=device)
        if device.type != "meta":
            target.copy_(parameter.detach())
        memo[id(parameter)] = nn.Parameter(target.detach(), parameter.requires_grad)
    for buffer in model.buffers():
        memo[id(buffer)] = buffer.detach().to(device, copy=True)
    return copy.deepcopy(model, memo)


def _scaling(once: Trace, twice: Trace, samples: int) -> list[KernelScaling]:
    if [kernel.name for _, kernel in once.kernels] != [kernel.name for _, kernel in twice.kernels]:
        raise NotAvailable("its operation sequence changes with the batch size")
    scaling = []
    for (phase, small), (_, large) in zip(once.kernels, twice.kernels, strict=True):
        flops = max(large.flops - small.flops, 0.0) / samples
        per_sample = max(large.moved_bytes - small.moved_bytes, 0.0) / samples
        fixed = max(small.moved_bytes - per_sample * samples, 0.0)
        scaling.append(KernelScaling(phase, flops, per_sample, fixed))
    return scaling


def merge_kernels(kernels: Iterable[KernelScaling]) -> tuple[Kernels, ...]:
    """Return rows of similar kernels: of one phase, each quantity within about 10 %, or more if
    there were above 150 rows. A row has the means of its kernels, so that sums do not change."""
    kernels = list(kernels)
    factor = _MERGE_FACTOR
    while True:
        rows: dict[tuple[Any, ...], list[KernelScaling]] = defaultdict(list)
        for kernel in kernels:
            levels = [
                round(math.log(amount) / math.log(factor)) if amount > 0 else None
                for amount in kernel[1:]
            ]
            rows[(kernel.phase, *levels)].append(kernel)
        if len(rows) <= _MOST_ROWS:
            break
        factor *= _MERGE_FACTOR
    return tuple(_row(similar) for similar in rows.values())


def _row(similar: list[KernelScaling]) -> Kernels:
    flops, per_sample, fixed = np.mean([kernel[1:] for kernel in similar], axis=0).tolist()
    return Kernels(
        phase=similar[0].phase,
        count=float(len(similar)),
        flops_per_sample=_rounded(flops),
        bytes_per_sample=_rounded(per_sample),
        bytes_fixed=_rounded(fixed),
    )


def _gradients_ready(
    trace: Trace, kernels: Iterable[KernelScaling]
) -> tuple[tuple[float, float], ...]:
    """Return the ready share of the gradients as a function of the finished backward pass, which
    grows in jumps: both ends of those at which it passes each sixteenth."""
    backward = (kernel for kernel in kernels if kernel.phase == "backward")
    sizes = (kernel.bytes_fixed + _READY_BATCH * kernel.bytes_per_sample for kernel in backward)
    done = [0.0, *accumulate(sizes)]
    ready = [0.0, *accumulate(size for _, size in trace.ready)]
    points = [(0.0, 0.0)]
    for level in range(1, _READY_LEVELS + 1):
        number = int(np.searchsorted(ready, ready[-1] * level / (_READY_LEVELS + 1)))
        share = done[trace.ready[number - 1][0]] / done[-1]
        points += [(share, ready[index] / ready[-1]) for index in (number - 1, number)]
    rounded = [(round(x, 4), round(y, 4)) for x, y in (*points, (1.0, 1.0))]
    return tuple(sorted(set(rounded)))


def work_cv(workload: Workload, model: nn.Module, dataset: Dataset, device: torch.device) -> float:
    """Return the coefficient of variation of the operations of single samples."""
    if has_uniform_samples(dataset):
        return 0.0
    copied = _copied(model, device).train()
    work = []
    for number in range(min(_SINGLE_SAMPLES, len(dataset))):
        sample = dataset.batch(np.array([number]), np.array([number], np.uint64))
        data = to_device(sample, device)
        recorder = Recorder(device)
        with recorder, AsOnGpu():
            workload.loss(copied, data).backward()  # type: ignore[no-untyped-call]
        work.append(sum(kernel.flops for kernel in recorder.kernels))
    return float(np.std(work, ddof=1) / np.mean(work)) if len(work) > 1 else 0.0


def _rounded(amount: float) -> float:
    return float(f"{amount:.{_DIGITS}g}")


class InputCost(NamedTuple):
    stored_bytes_per_sample: float
    cpu_s_per_sample: float
    reads_files: bool  # of the dataset: whether loader processes make its samples
    method: str


def measure_input(spec: WorkloadSpec, workload: Workload, dataset: Dataset) -> InputCost:
    """Return the cost of a sample, measured on one core: with the files that a workload of
    synthetic samples offers, else with its own data, whose stored bytes are a sample's share of the
    files in the option ``data``. Files are read from memory, without the time of the storage."""
    real_input = catalogue.entry(spec.name).real_input
    if real_input is not None and "data" not in spec.options:
        module, _, function = real_input.partition(":")
        with tempfile.TemporaryDirectory(prefix="wattlaw-") as folder:
            write: Callable[..., RealInput] = getattr(import_module(module), function)
            made = write(catalogue.validated(spec), Path(folder) / "data")
            kept = {k: v for k, v in spec.options.items() if k not in _SYNTHETIC_ONLY}
            real = WorkloadSpec(name=spec.name, options={**kept, **made.options})
            read = catalogue.build(real).training_data()
            return _measured(read, made.batch, made.stored_bytes_per_sample, made.method)
    data = spec.options.get("data")
    if isinstance(data, str) and Path(data).is_dir():
        files = [path for path in Path(data).rglob("*") if path.is_file()]
        samples = len(dataset) + len(workload.evaluation_data())
        share = sum(path.stat().st_size for path in files) / samples
        return _measured(dataset, 64, share, f"{len(files)} files of {samples} samples")
    if not dataset.reads_files:
        return _measured(dataset, 64, 0.0, "samples in memory; nothing is read per epoch")
    method = "read unchanged; assumed to be stored in as many bytes as its tensors"
    tensors = [each for each in pytree.tree_leaves(first_batch(dataset, 1))
               if isinstance(each, torch.Tensor)]  # fmt: skip
    return _measured(dataset, 64, float(sum(each.nbytes for each in tensors)), method)


def _measured(
    dataset: Dataset, batch: int, stored_bytes_per_sample: float, method: str
) -> InputCost:
    """Return the cost of a sample by the quickest of some passes after a warm-up."""
    samples = min(len(dataset), _MAX_SAMPLES)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    times_s = []
    try:
        for _ in range(_PASSES + 1):
            start_s = time.process_time()
            for begin in range(0, samples, batch):
                indices = np.arange(begin, min(begin + batch, samples))
                dataset.batch(indices, indices.astype(np.uint64))
            times_s.append(time.process_time() - start_s)
    finally:
        torch.set_num_threads(threads)
    cpu_s = min(times_s[1:]) / samples
    return InputCost(stored_bytes_per_sample, cpu_s, dataset.reads_files, method)
