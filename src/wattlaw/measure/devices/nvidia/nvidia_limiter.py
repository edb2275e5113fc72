"""Limits of NVIDIA GPUs: power, clock and power profiles by NVML; power and clock by nvidia-smi.

Workload power profiles (Blackwell and newer) are such as max-Q for training. A GPU has a list of
requested profiles and enforces those of them that do not conflict with a profile of higher
priority.
"""

import contextlib
import ctypes
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Collection
from typing import Any, Self

import psutil
import pynvml

from wattlaw.common.errors import NotAvailable, NotPermitted, one_line
from wattlaw.common.processes import run_captured
from wattlaw.common.text import collapse_whitespace
from wattlaw.measure.devices.limiter import GpuLimiter, LimitState
from wattlaw.measure.devices.nvidia.nvml import (
    GpuLost,
    NvidiaGpu,
    describe,
    open_driver,
    query,
    query_optional,
    watts,
)
from wattlaw.study.base_model import POWER_PROFILES

_SMI_TIMEOUT_S, _SUDO_LIST_TIMEOUT_S = 60, 10
#: The longest wait for another process that changes a limit.
_WAIT_S = 10.0
_SETTINGS = frozenset({"-pl", "-lgc", "-rgc"})
#: A profile that is newer than this program is named by its number in NVML.
_UNNAMED = "profile-"
_MASK_BITS = 32


class NvidiaLimiter(GpuLimiter[NvidiaGpu]):
    _driver: contextlib.ExitStack

    @classmethod
    def open(cls) -> Self:
        with contextlib.ExitStack() as stack:
            gpus = stack.enter_context(open_driver())
            if not gpus:
                raise NotAvailable("the NVIDIA driver lists no GPU")
            limiter = cls({gpu.uuid: gpu for gpu in gpus})
            limiter._driver = stack.pop_all()
        return limiter

    def read(self, device: str) -> LimitState:
        gpu = self._gpu(device)
        handle = gpu.handle
        try:
            limits = query(pynvml.nvmlDeviceGetPowerManagementLimitConstraints, handle)
            mode = query(pynvml.nvmlDeviceGetPersistenceMode, handle)
            memory_mhz = query(pynvml.nvmlDeviceGetSupportedMemoryClocks, handle)
            supported = pynvml.nvmlDeviceGetSupportedGraphicsClocks
            clocks = (memory_mhz and query(supported, handle, max(memory_mhz))) or []
            offered, requested, enforced = _read_profiles(handle, query_optional)
            return LimitState(
                device,
                gpu.name,
                watts(query(pynvml.nvmlDeviceGetPowerManagementLimit, handle)),
                watts(query(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)),
                watts(query(pynvml.nvmlDeviceGetPowerManagementDefaultLimit, handle)),
                watts(limits[0] if limits else None),
                watts(limits[1] if limits else None),
                min(clocks, default=None),
                max(clocks, default=None),
                gpu.is_shared,
                None if mode is None else mode == pynvml.NVML_FEATURE_ENABLED,
                power_profiles=offered,
                requested_profiles=requested,
                enforced_profiles=enforced,
            )
        except (pynvml.NVMLError, GpuLost) as error:
            raise NotAvailable(f"{device}: does not answer: {one_line(error)}") from None

    def set_power_limit(self, device: str, watts: float) -> None:
        call = pynvml.nvmlDeviceSetPowerManagementLimit
        self._set(device, _power_options(watts), call, round(watts * 1000))

    def lock_clock(self, device: str, mhz: float) -> None:
        clock = round(mhz)
        options = "-lgc", f"{clock},{clock}"
        self._set(device, options, pynvml.nvmlDeviceSetGpuLockedClocks, clock, clock)

    def unlock_clock(self, device: str) -> None:
        """Remove every lock of the graphics clock; a GPU without this feature has none."""
        with contextlib.suppress(_NotSupported):
            self._set(device, ("-rgc",), pynvml.nvmlDeviceResetGpuLockedClocks)

    def request_profiles(self, device: str, profiles: Collection[str]) -> None:
        def change(handle: Any) -> None:
            others = {*_read_profiles(handle, query)[1]} - {*profiles}
            clear = pynvml.nvmlDeviceWorkloadPowerProfileClearRequestedProfiles
            request = pynvml.nvmlDeviceWorkloadPowerProfileSetRequestedProfiles
            for call, names in ((clear, others), (request, profiles)):
                if names:
                    call(handle, ctypes.byref(_profile_mask(names)))

        self._set(device, (), change)

    def permission_problem(self, device: str) -> str | None:
        return None if os.geteuid() == 0 else f"{device}: setting limits requires root"

    def close(self) -> None:
        self._driver.close()

    def _set(
        self, device: str, _: tuple[str, ...], call: Callable[..., None], *values: int
    ) -> None:
        """Make a change by a call of the driver; nvidia-smi makes it with the options."""
        gpu = self._gpu(device)
        try:
            call(gpu.handle, *values)
        except pynvml.NVMLError as error:
            message = f"{device}: {describe(error)}"
            if error.value == pynvml.NVML_ERROR_NO_PERMISSION:
                raise NotPermitted(f"{message}: setting limits requires root") from None
            is_unsupported = error.value == pynvml.NVML_ERROR_NOT_SUPPORTED
            raise (_NotSupported if is_unsupported else NotAvailable)(message) from None


class _NotSupported(NotAvailable):
    """The GPU does not support this."""


def _read_profiles(handle: Any, read: Callable[..., Any]) -> list[tuple[str, ...]]:
    """Return the profiles that a GPU offers, that are requested, and that it enforces; none if the
    GPU, the driver or its bindings have none."""
    if not hasattr(pynvml, "nvmlDeviceWorkloadPowerProfileGetProfilesInfo"):
        return [(), (), ()]
    info = pynvml.c_nvmlWorkloadPowerProfileProfilesInfo_v1_t()
    now = pynvml.c_nvmlWorkloadPowerProfileCurrentProfiles_v1_t()
    get_info = pynvml.nvmlDeviceWorkloadPowerProfileGetProfilesInfo
    get_now = pynvml.nvmlDeviceWorkloadPowerProfileGetCurrentProfiles
    for call, answer in ((get_info, info), (get_now, now)):
        if read(call, handle, ctypes.byref(answer)) is None:
            return [(), (), ()]
    masks = info.perfProfilesMask, now.requestedProfilesMask, now.enforcedProfilesMask
    return [_profiles_of(mask) for mask in masks]


def _profiles_of(mask: Any) -> tuple[str, ...]:
    size = len(mask.mask) * _MASK_BITS
    numbers = [n for n in range(size) if mask.mask[n // _MASK_BITS] >> n % _MASK_BITS & 1]
    known = len(POWER_PROFILES)
    return tuple(POWER_PROFILES[n] if n < known else f"{_UNNAMED}{n}" for n in numbers)


def _profile_mask(names: Collection[str]) -> Any:
    request = pynvml.c_nvmlWorkloadPowerProfileRequestedProfiles_v1_t()
    for name in names:
        if name.startswith(_UNNAMED):
            number = int(name.removeprefix(_UNNAMED))
        else:
            number = POWER_PROFILES.index(name)
        request.requestedProfilesMask.mask[number // _MASK_BITS] |= 1 << number % _MASK_BITS
    return request


class NvidiaSmiLimiter(NvidiaLimiter):
    """For users whom sudo allows it without a password (docs/devices.md has the rules)."""

    @classmethod
    def open(cls) -> Self:
        for program in ("sudo", "nvidia-smi"):
            if shutil.which(program) is None:
                raise NotAvailable(f"{program} not found")
        return super().open()

    def read(self, device: str) -> LimitState:
        _wait_for_others(self._gpu(device).uuid)
        return super().read(device)

    def request_profiles(self, device: str, profiles: Collection[str]) -> None:  # noqa: ARG002
        raise NotPermitted(
            f"{device}: setting a power profile requires root; run as root, or let the prolog of "
            "Slurm set it (launch.slurm.limits: prolog)"
        )

    def permission_problem(self, device: str) -> str | None:
        options = _power_options(self.read(device).power_limit_w or 0.0)
        if os.geteuid() == 0:
            return None
        with contextlib.suppress(NotAvailable, OSError, ValueError, subprocess.SubprocessError):
            sudo, smi = _programs()
            line = [sudo, "-n", "-l", smi, "-i", device, *options]
            if run_captured(line, _SUDO_LIST_TIMEOUT_S).returncode == 0:
                return None
        return (
            f"{device}: sudo does not allow 'nvidia-smi -i {device} -pl WATTS' without a password"
        )

    def _set(self, device: str, options: tuple[str, ...], *_: object) -> None:
        sudo, smi = _programs()
        uuid = self._gpu(device).uuid
        _wait_for_others(uuid)
        try:
            done = run_captured([sudo, "-n", smi, "-i", uuid, *options], _SMI_TIMEOUT_S)
        except (OSError, subprocess.SubprocessError) as error:
            raise NotAvailable(f"{device}: nvidia-smi: {one_line(error)}") from None
        if done.returncode:
            output = collapse_whitespace(f"{done.stdout} {done.stderr}")[-300:]
            # sudo refuses with code 1 on stderr, in the user's language; nvidia-smi uses stdout.
            is_from_sudo = done.returncode == 1 and not done.stdout.strip()
            kind = _NotSupported if "not supported" in output.lower() else NotAvailable
            if is_from_sudo or "permission" in output.lower():
                kind = NotPermitted
            raise kind(f"{device}: sudo -n nvidia-smi: {output}")


def _power_options(watts: float) -> tuple[str, ...]:
    return "-pl", f"{watts:.3f}".rstrip("0").rstrip(".")


def _programs() -> tuple[str, str]:
    sudo, smi = shutil.which("sudo"), shutil.which("nvidia-smi")
    if sudo is None or smi is None:
        raise NotAvailable("sudo or nvidia-smi has been removed")
    return sudo, smi


def _wait_for_others(uuid: str) -> None:
    """Wait until no other nvidia-smi changes a GPU. One continues after the process that started it
    was killed, and would set its limit after the previous one is restored. Only processes of root
    and of this user count, by the real user: any user can start a program of any name, but not as
    root. A setuid program keeps the caller's, as sudo does before its checks."""
    end_s, trusted = time.monotonic() + _WAIT_S, {0, os.getuid()}
    while True:
        changing = None
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                line = process.cmdline() if process.uids().real in trusted else []
                has_smi = any(word.endswith("nvidia-smi") for word in line[:4])  # after sudo, too
                if has_smi and uuid in line and not _SETTINGS.isdisjoint(line):
                    changing = process.pid
                    break
        if changing is None:
            return
        if time.monotonic() > end_s:
            raise NotAvailable(f"{uuid}: another nvidia-smi (pid {changing}) is changing it")
        time.sleep(0.05)
