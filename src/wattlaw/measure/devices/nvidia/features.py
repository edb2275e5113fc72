"""Features of one NVIDIA GPU: what its values count, its limits, and whether it is shared."""

import time
from collections.abc import Callable
from typing import Any

import pynvml

from wattlaw.measure.devices.nvidia.nvml import NvidiaGpu, query_optional, scaled, valid
from wattlaw.measure.devices.nvidia.nvml_readings import INSTANT, Fields
from wattlaw.store.streams import Kind

_SCOPES = {0: "gpu", 1: "module", 2: "memory"}
#: Compute capabilities of the GPUs whose power sensor is on for 25 of 100 ms: GA100 and GH100
#: (Yang, Adamek, Armour, "Part-time Power Measurements", arXiv 2312.02741).
_PART_TIME_SENSORS, _PART_TIME_DUTY = frozenset({(8, 0), (9, 0)}), 0.25
_GA100, _MAX_REASONS = (8, 0), 2**32
_VIRTUALIZATION = {
    pynvml.NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH: "passthrough",
    pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU: "vgpu",
    pynvml.NVML_GPU_VIRTUALIZATION_MODE_HOST_VGPU: "host-vgpu",
    pynvml.NVML_GPU_VIRTUALIZATION_MODE_HOST_VSGA: "host-vsga",
}
#: The compute capability of GPUs of which a module has only one, so that modules can be added.
ONE_PER_MODULE = (9, 0)
MODULE_CONTAINS: tuple[Kind, ...] = ("gpu", "cpu", "dram")


def features(
    gpu: NvidiaGpu, capability: tuple[int, int] | None
) -> dict[str, str | float | bool | None]:
    """Return the facts of a GPU that do not depend on how it is read."""
    handle, now_ns = gpu.handle, time.time_ns()
    scopes = [
        name
        for scope, name in _SCOPES.items()
        if query_optional(Fields(handle, ((INSTANT, scope),)).read, now_ns)
    ]
    limits_mw = query_optional(pynvml.nvmlDeviceGetPowerManagementLimitConstraints, handle)
    mode = query_optional(pynvml.nvmlDeviceGetVirtualizationMode, handle)
    virtualization = _VIRTUALIZATION.get(mode or 0)
    users = "all MIG instances of the " if gpu.is_shared else ""
    users = "all virtual machines on the " if "vgpu" in str(virtualization) else users
    return {
        "power_duty": _PART_TIME_DUTY if capability in _PART_TIME_SENSORS else None,
        "power_scopes": ",".join(scopes) or None,
        "scope": f"{users}GPU with its memory",
        "default_power_limit_w": watts(pynvml.nvmlDeviceGetPowerManagementDefaultLimit, handle),
        "max_power_limit_w": scaled(valid(limits_mw[1]), 1e-3) if limits_mw else None,
        "power_limit_w": watts(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle),
        "is_shared": bool(users),
        "virtualization": virtualization,
    }


def is_mean(power: str | None, capability: tuple[int, int] | None) -> bool:
    """Return whether a source of power is a mean over 1 s.

    ``nvmlDeviceGetPowerUsage`` is one on GPUs that are newer than GA100 (NVML's documentation).
    """
    is_newer = capability is not None and capability > _GA100
    return power == "average" or (power == "usage" and is_newer)


def throttle_reasons(handle: Any) -> int | None:
    """Return the bit mask of what limits the clocks, also from drivers before 535."""
    reasons = query_optional(pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
    if reasons is None:
        reasons = query_optional(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    return None if valid(reasons, _MAX_REASONS) is None else reasons


def watts(call: Callable[[Any], int], handle: Any) -> float | None:
    return scaled(valid(query_optional(call, handle)), 1e-3)
