"""The kind of device that torch trains on here, and torch's functions for it.

``cuda`` is NVIDIA's GPUs and, with ROCm, AMD's; ``xpu`` is Intel's; ``cpu`` means that no GPU is
used.
"""

from typing import Any

import torch

from wattlaw.common.errors import NotAvailable
from wattlaw.measure.devices.nvidia.architectures import no_kernels_reason

#: The backend of torch.distributed for each kind of device.
BACKENDS = {"cuda": "nccl", "xpu": "xccl", "cpu": "gloo"}


def device_kind(*, has_cuda: bool, has_xpu: bool) -> str:
    """Return the kind of device to train on.

    >>> BACKENDS[device_kind(has_cuda=False, has_xpu=True)]
    'xccl'
    """
    return "cuda" if has_cuda else "xpu" if has_xpu else "cpu"


def available_device(index: int = 0) -> torch.device:
    """Return the GPU of a number, or the processor if torch can use no GPU here."""
    kind = device_kind(has_cuda=torch.cuda.is_available(), has_xpu=torch.xpu.is_available())
    return torch.device("cpu") if kind == "cpu" else torch.device(kind, index)


def gpu_functions(device: torch.device) -> Any | None:
    return None if device.type == "cpu" else torch.get_device_module(device)


def check_kernels(device: torch.device) -> None:
    """Raise ``NotAvailable`` if the device is an NVIDIA GPU that torch has no kernels for."""
    if device.type != "cuda" or torch.version.hip:
        return
    gpu = torch.cuda.get_device_properties(device)
    capability, architectures = (gpu.major, gpu.minor), torch.cuda.get_arch_list()
    reason = no_kernels_reason(gpu.name, capability, torch.__version__, architectures)
    if reason is not None:
        raise NotAvailable(reason)
