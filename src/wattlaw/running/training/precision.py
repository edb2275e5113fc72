"""The numeric precision of training."""

import contextlib
from typing import Any

import torch

from wattlaw.common.errors import NotAvailable

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """One of fp32, tf32, bf16 and fp16; weights and optimiser state stay fp32 in all of them.

    fp32 is IEEE throughout: TF32, which torch uses for convolutions by default, is off. bf16 and
    fp16 are torch's automatic mixed precision; fp16 scales the loss (Micikevicius et al. 2018,
    arXiv 1710.03740), so that small gradients do not vanish.

    Raises ``NotAvailable`` for tf32 without an NVIDIA GPU.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        if name == "tf32" and (device.type != "cuda" or torch.version.hip):
            raise NotAvailable("precision tf32 needs an NVIDIA GPU; allowed here: fp32, bf16, fp16")
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        torch.backends.cudnn.allow_tf32 = name == "tf32"
        self._device, self._dtype = device, _AUTOCAST.get(name)
        self._scaler = torch.amp.GradScaler(device.type, enabled=name == "fp16")

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self._dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self._device.type, self._dtype)

    def backward(self, loss: torch.Tensor) -> None:
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Make an optimizer step; with fp16 a step whose gradients overflowed is skipped."""
        self._scaler.step(optimizer)
        self._scaler.update()

    def state_dict(self) -> dict[str, Any]:
        return self._scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            self._scaler.load_state_dict(state)
