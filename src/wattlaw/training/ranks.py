"""One rank's place among the others: its device, its host, its collectives."""

import datetime
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from wattlaw.training.handover import RENDEZVOUS_FILE

#: A collective that waits longer than this has lost a peer.
_COLLECTIVE_TIMEOUT = datetime.timedelta(minutes=30)


@dataclass(frozen=True)
class Ranks:
    """Rank and world as torchrun gives them."""

    rank: int
    world: int
    local_rank: int
    local_world: int
    device: torch.device
    host: str

    @property
    def is_first_of_host(self) -> bool:
        """Say whether this rank speaks for its host."""
        return self.local_rank == 0

    def synchronize(self) -> None:
        """Wait until this rank's device has done all it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def meet(self) -> None:
        """Wait for this rank's device and for all other ranks."""
        self.synchronize()
        dist.barrier()
        self.synchronize()

    def table(self, row: Sequence[float | torch.Tensor]) -> torch.Tensor:
        """Return every rank's row of numbers, shape (world, len(row)), float64, on every rank."""
        mine = torch.stack(
            [torch.as_tensor(value, dtype=torch.float64, device=self.device) for value in row]
        )
        rows = [torch.empty_like(mine) for _ in range(self.world)]
        dist.all_gather(rows, mine)
        return torch.stack(rows).cpu()

    def of_host(self, table: torch.Tensor) -> torch.Tensor:
        """Return the rows of this host's ranks; torchrun numbers a host's ranks in a row."""
        first = self.rank - self.local_rank
        return table[first : first + self.local_world]


@contextmanager
def joined() -> Iterator[Ranks]:
    """Join the process group that torchrun's environment describes, and leave it at the end."""
    local_rank = int(os.environ["LOCAL_RANK"])
    if torch.cuda.is_available():
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
        backend, bound = "nccl", device
    else:
        device, backend, bound = torch.device("cpu"), "gloo", None
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    meeting = os.environ.get(RENDEZVOUS_FILE)
    dist.init_process_group(
        backend,
        store=dist.FileStore(meeting, world) if meeting else None,  # type: ignore[attr-defined]
        rank=rank,
        world_size=world,
        timeout=_COLLECTIVE_TIMEOUT,
        device_id=bound,
    )
    try:
        yield Ranks(
            rank=rank,
            world=world,
            local_rank=local_rank,
            local_world=int(os.environ["LOCAL_WORLD_SIZE"]),
            device=device,
            host=socket.gethostname(),
        )
    finally:
        dist.destroy_process_group()


def moved(data: Any, device: torch.device) -> Any:
    """Return tensors, or tuples, lists and dicts of them, on a device."""
    if isinstance(data, torch.Tensor):
        return data.to(device, non_blocking=True)
    if isinstance(data, tuple | list):
        return type(data)(moved(item, device) for item in data)
    if isinstance(data, dict):
        return {key: moved(item, device) for key, item in data.items()}
    return data
