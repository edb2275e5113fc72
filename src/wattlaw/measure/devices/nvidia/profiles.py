"""Workload power profiles of NVIDIA GPUs (Blackwell and newer), such as max-Q for training.

A GPU has a list of requested profiles and enforces those of them that do not conflict with a
profile of higher priority.
"""

import ctypes
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import pynvml

from wattlaw.measure.devices.nvidia.nvml import query
from wattlaw.study.base_model import POWER_PROFILES

#: A profile that is newer than this program is named by its number in NVML.
_UNNAMED = "profile-"
_MASK_BITS = 32


class Profiles(NamedTuple):
    """The profiles that a GPU offers, that are requested, and that it enforces."""

    offered: tuple[str, ...] = ()
    requested: tuple[str, ...] = ()
    enforced: tuple[str, ...] = ()


def read_profiles(handle: Any, read: Callable[..., Any] = query) -> Profiles:
    """Return the profiles of a GPU; none if the GPU, the driver or its bindings have none.

    ``read`` calls the driver; errors are its own.
    """
    if not hasattr(pynvml, "nvmlDeviceWorkloadPowerProfileGetProfilesInfo"):
        return Profiles()
    info = pynvml.c_nvmlWorkloadPowerProfileProfilesInfo_v1_t()
    now = pynvml.c_nvmlWorkloadPowerProfileCurrentProfiles_v1_t()
    for call, answer in (
        (pynvml.nvmlDeviceWorkloadPowerProfileGetProfilesInfo, info),
        (pynvml.nvmlDeviceWorkloadPowerProfileGetCurrentProfiles, now),
    ):
        if read(call, handle, ctypes.byref(answer)) is None:
            return Profiles()
    masks = info.perfProfilesMask, now.requestedProfilesMask, now.enforcedProfilesMask
    return Profiles(*map(_names, masks))


def request_profiles(handle: Any, wanted: Collection[str]) -> None:
    """Make these profiles the requested ones, and no others; raises ``NVMLError``.

    Setting adds to the requested profiles, so others are cleared first.
    """
    others = set(read_profiles(handle).requested) - set(wanted)
    _change(pynvml.nvmlDeviceWorkloadPowerProfileClearRequestedProfiles, handle, others)
    _change(pynvml.nvmlDeviceWorkloadPowerProfileSetRequestedProfiles, handle, wanted)


def _change(call: Callable[..., Any], handle: Any, profiles: Collection[str]) -> None:
    if not profiles:
        return
    request = pynvml.c_nvmlWorkloadPowerProfileRequestedProfiles_v1_t()
    for name in profiles:
        number = int(name.removeprefix(_UNNAMED)) if name.startswith(_UNNAMED) else None
        number = POWER_PROFILES.index(name) if number is None else number
        request.requestedProfilesMask.mask[number // _MASK_BITS] |= 1 << number % _MASK_BITS
    call(handle, ctypes.byref(request))


def _names(mask: Any) -> tuple[str, ...]:
    numbers = [
        word * _MASK_BITS + bit
        for word, bits in enumerate(mask.mask)
        for bit in range(_MASK_BITS)
        if bits >> bit & 1
    ]
    known = len(POWER_PROFILES)
    return tuple(POWER_PROFILES[n] if n < known else f"{_UNNAMED}{n}" for n in numbers)
