"""The digits' net with a rank that fails: which one, where and how stands in ``TEST_FAULT``."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from wattlaw.workloads.data_loading import InMemory
from wattlaw.workloads.digits import Options
from wattlaw.workloads.digits.cnn import DigitsCnn


def raises() -> None:
    raise ValueError("sample 7 is broken")


def lacks_memory() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def is_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def is_lost() -> None:
    """End with the agent of this node, which says nothing."""
    os.kill(int(os.environ["WATTLAW_AGENT_PID"]), signal.SIGKILL)
    time.sleep(600)


HOW = {how.__name__: how for how in (raises, lacks_memory, is_killed, is_lost)}


def fail(where: str) -> None:
    """Fail once if this is the place and the rank of a fault; note the time."""
    for fault in os.environ["TEST_FAULT"].split(","):
        rank, place, how = fault.split()
        noted = Path(f"{os.environ['TEST_FAILED_AT']}.{rank}")
        if (os.environ["RANK"], where) == (rank, place) and not noted.exists():
            noted.write_text(str(time.time()))
            HOW[how]()


_destroy = torch.distributed.destroy_process_group


def _destroy_as_nccl() -> None:
    """After an error, wait as NCCL may: for collectives that the other ranks are in."""
    if sys.exc_info()[0] is not None:
        time.sleep(600)
    _destroy()


torch.distributed.destroy_process_group = _destroy_as_nccl


class Images(InMemory):
    def batch(self, *key: Any) -> tuple[torch.Tensor, ...]:
        fail("loading")
        return super().batch(*key)


class FailingDigits(DigitsCnn):
    """Fails in the place of ``TEST_FAULT``; in training, after one finished epoch.

    With ``TEST_WAITS`` the other ranks then wait without an end, as in a collective of a network
    that does not notice the loss of a peer.
    """

    def __init__(self, options: Options) -> None:
        fail("starting")  # before there is a process group
        super().__init__(options)
        self._has_epoch = False

    def loss(self, model: nn.Module, data: Any) -> torch.Tensor:
        if self._has_epoch:
            fail("training")
            if "TEST_WAITS" in os.environ:
                time.sleep(600)
        return super().loss(model, data)

    def evaluate(self, model: nn.Module, data: Any) -> dict[str, torch.Tensor]:
        self._has_epoch = True
        return super().evaluate(model, data)

    def _data(self, *, training: bool) -> InMemory:
        return Images(super()._data(training=training).tensors)
