"""A rank of a run: its device, its host, its collectives.

Of torch's kinds of devices ``cuda`` is NVIDIA's GPUs and, with ROCm, AMD's; ``xpu`` is Intel's;
``cpu`` means that no GPU is used.
"""

import datetime
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from wattlaw.common.errors import NotAvailable
from wattlaw.measure.devices.inventory import accelerators
from wattlaw.measure.devices.meter import NO_GPU, Accelerator
from wattlaw.measure.devices.nvidia.architectures import no_kernels_reason
from wattlaw.running.steps import Floats
from wattlaw.running.training.environment import RENDEZVOUS_FILE, host_name, take_device

T = TypeVar("T")

#: A collective that waits longer than this has lost another rank.
_COLLECTIVE_TIMEOUT = datetime.timedelta(minutes=30)


@dataclass(frozen=True)
class Ranks:
    rank: int
    world: int
    local_rank: int
    local_world: int
    device: torch.device
    host: str
    tp: int = 1  # ranks that share a copy of the model

    @property
    def copies(self) -> int:
        return self.world // self.tp

    @property
    def copy(self) -> int:
        return self.rank // self.tp

    def once(self, values: dict[str, float]) -> dict[str, float]:
        """Return values of samples as 0 where another rank of the same copy has them, too."""
        return values if self.rank % self.tp == 0 else dict.fromkeys(values, 0)

    @property
    def gpu(self) -> Any | None:
        return gpu_functions(self.device)

    def synchronize(self) -> None:
        if self.gpu is not None:
            self.gpu.synchronize(self.device)

    def barrier(self) -> None:
        self.synchronize()
        if self.world > 1:
            dist.barrier()
            self.synchronize()

    @contextmanager
    def first_before_others(self) -> Iterator[None]:
        """Run a block on the first rank, and then on the others, which find what it has cached."""
        if self.rank > 0:
            self.barrier()
        try:
            yield
        finally:  # after an error, too: the others do not wait for it, but find it themselves
            if self.rank == 0:
                self.barrier()

    def all_gather(self, value: T) -> list[T]:
        gathered: list[T] = [value] * self.world
        if self.world > 1:
            dist.all_gather_object(gathered, value)
        return gathered

    def average(self, tensor: torch.Tensor) -> None:
        dist.all_reduce(tensor)
        tensor /= self.world

    def cpu_group(self) -> Any:
        return None if self.gpu is None else dist.new_group(backend="gloo")

    def largest(self, values: Sequence[float], group: Any) -> list[float]:
        reduced = torch.tensor(values, dtype=torch.float64)
        if self.world > 1:
            dist.all_reduce(reduced, dist.ReduceOp.MAX, group=group)
        return reduced.tolist()

    def least_and_mean(self, values: Floats) -> tuple[Floats, Floats]:
        least = torch.from_numpy(values).to(self.device)
        mean = least.clone()
        dist.all_reduce(least, dist.ReduceOp.MIN)
        self.average(mean)
        return least.cpu().numpy(), mean.cpu().numpy()

    def of_host(self, gathered: list[T]) -> list[T]:
        first = self.rank - self.local_rank  # a host's ranks are numbered in a row
        return gathered[first : first + self.local_world]


@contextmanager
def process_group(tp: int = 1) -> Iterator[Ranks]:
    """Join the process group that the environment describes; leave it if the block succeeds.

    After an error it is left as it is: to destroy it would wait for ranks that wait for this one.
    """
    local_rank = int(os.environ["LOCAL_RANK"])
    device = available_device(take_device(local_rank))  # CUDA reads the variable at its first use
    check_kernels(device)
    gpu = gpu_functions(device)
    if gpu is not None:
        gpu.set_device(device)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    file = os.environ.get(RENDEZVOUS_FILE)
    dist.init_process_group(
        available_accelerator().backend,
        store=dist.FileStore(file, world) if file else None,  # type: ignore[attr-defined]
        rank=rank,
        world_size=world,
        timeout=_COLLECTIVE_TIMEOUT,
        device_id=None if gpu is None else device,
    )
    yield Ranks(
        rank=rank,
        world=world,
        local_rank=local_rank,
        local_world=int(os.environ["LOCAL_WORLD_SIZE"]),
        device=device,
        host=host_name(),
        tp=tp,
    )
    dist.destroy_process_group()


def sum_by_name(gathered: Iterable[dict[str, float]]) -> dict[str, float]:
    """Return the sums over ranks; a rank without samples has only their number."""
    totals: dict[str, float] = defaultdict(float)
    for values in gathered:
        for name, value in values.items():
            totals[name] += value
    return dict(totals)


def to_device(data: Any, device: torch.device, images: torch.memory_format | None = None) -> Any:
    """Tensors of four dimensions get the memory format ``images``."""
    if isinstance(data, torch.Tensor):
        form = images if images is not None and data.dim() == 4 else torch.preserve_format
        return data.to(device, non_blocking=True, memory_format=form)
    if isinstance(data, tuple | list):
        make = getattr(data, "_make", type(data))  # a named tuple is made otherwise
        return make(to_device(item, device, images) for item in data)
    if isinstance(data, dict):
        return {key: to_device(item, device, images) for key, item in data.items()}
    return data


def available_accelerator() -> Accelerator:
    kinds = ((getattr(torch, one.torch_kind, None), one) for one in accelerators())
    return next((one for gpu, one in kinds if gpu is not None and gpu.is_available()), NO_GPU)


def available_device(index: int = 0) -> torch.device:
    kind = available_accelerator().torch_kind
    return torch.device("cpu") if kind == "cpu" else torch.device(kind, index)


def gpu_functions(device: torch.device) -> Any | None:
    return None if device.type == "cpu" else torch.get_device_module(device)


def check_kernels(device: torch.device) -> None:
    if device.type != "cuda" or torch.version.hip:
        return
    gpu = torch.cuda.get_device_properties(device)
    capability, architectures = (gpu.major, gpu.minor), torch.cuda.get_arch_list()
    reason = no_kernels_reason(gpu.name, capability, torch.__version__, architectures)
    if reason is not None:
        raise NotAvailable(reason)
