"""Power limits and clock locks of NVIDIA GPUs: by NVML, or by ``sudo -n nvidia-smi``."""

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Collection
from typing import Self

import psutil
import pynvml

from wattlaw.common.errors import NotAvailable, NotPermitted, one_line
from wattlaw.common.processes import run_captured
from wattlaw.common.text import collapse_whitespace
from wattlaw.measure.devices.limiter import GpuLimiter, LimitState
from wattlaw.measure.devices.nvidia.nvml import (
    Driver,
    GpuLost,
    NvidiaGpu,
    describe,
    open_driver,
    query,
    query_optional,
    scaled,
    valid,
)
from wattlaw.measure.devices.nvidia.profiles import read_profiles, request_profiles

_SMI_TIMEOUT_S = 60
#: The longest wait for another process that changes a limit.
_WAIT_S = 10.0
_SETTINGS = frozenset({"-pl", "-lgc", "-rgc"})
_UNLOCK_OPTIONS = ("-rgc",)
_SUDO_LIST_TIMEOUT_S = 10


class NvidiaLimiter(GpuLimiter[NvidiaGpu]):
    def __init__(self, driver: Driver) -> None:
        super().__init__({gpu.uuid: gpu for gpu in driver.gpus()})
        self._driver = driver

    @classmethod
    def open(cls) -> Self:
        with open_driver(keep=True) as driver:
            limiter = cls(driver)
            if not limiter._gpus:
                raise NotAvailable("the NVIDIA driver lists no GPU")
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
            profiles = read_profiles(handle, query_optional)
            return LimitState(
                device,
                gpu.name,
                _watts(query(pynvml.nvmlDeviceGetPowerManagementLimit, handle)),
                _watts(query(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)),
                _watts(query(pynvml.nvmlDeviceGetPowerManagementDefaultLimit, handle)),
                _watts(limits[0] if limits else None),
                _watts(limits[1] if limits else None),
                min(clocks, default=None),
                max(clocks, default=None),
                gpu.is_shared,
                None if mode is None else mode == pynvml.NVML_FEATURE_ENABLED,
                power_profiles=profiles.offered,
                requested_profiles=profiles.requested,
                enforced_profiles=profiles.enforced,
            )
        except (pynvml.NVMLError, GpuLost) as error:
            raise NotAvailable(f"{device}: does not answer: {one_line(error)}") from None

    def set_power_limit(self, device: str, watts: float) -> None:
        call = pynvml.nvmlDeviceSetPowerManagementLimit
        self._set(device, _set_power_options(watts), call, round(watts * 1000))

    def lock_clock(self, device: str, mhz: float) -> None:
        clock = round(mhz)
        options = "-lgc", f"{clock},{clock}"
        self._set(device, options, pynvml.nvmlDeviceSetGpuLockedClocks, clock, clock)

    def unlock_clock(self, device: str) -> None:
        """Remove every lock of the graphics clock; a GPU without this feature has none."""
        with contextlib.suppress(_NotSupported):
            self._set(device, _UNLOCK_OPTIONS, pynvml.nvmlDeviceResetGpuLockedClocks)

    def request_profiles(self, device: str, profiles: Collection[str]) -> None:
        self._set(device, (), lambda handle: request_profiles(handle, profiles))

    def permission_problem(self, device: str) -> str | None:
        """Return that only root may set limits, if this process is of another user."""
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


class NvidiaSmiLimiter(NvidiaLimiter):
    """Limits GPUs by ``sudo -n nvidia-smi``, for users whom sudo allows it without a password.

    ``docs/devices.md`` has the rules for sudoers.
    """

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
        """Return that sudo does not allow nvidia-smi, which it lists without running it."""
        options = _set_power_options(self.read(device).power_limit_w or 0.0)
        if os.geteuid() == 0 or _sudo_allows(device, *options):
            return None
        return (
            f"{device}: sudo does not allow 'nvidia-smi -i {device} -pl WATTS' without a password"
        )

    def _set(self, device: str, options: tuple[str, ...], *_: object) -> None:
        sudo, smi = shutil.which("sudo"), shutil.which("nvidia-smi")
        if sudo is None or smi is None:
            raise NotAvailable("sudo or nvidia-smi has been removed")
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


def _set_power_options(watts: float) -> tuple[str, ...]:
    return "-pl", f"{watts:.3f}".rstrip("0").rstrip(".")


def _sudo_allows(device: str, *options: str) -> bool:
    sudo, smi = shutil.which("sudo"), shutil.which("nvidia-smi")
    if sudo is None or smi is None:
        return False
    line = [sudo, "-n", "-l", smi, "-i", device, *options]
    try:
        return run_captured(line, _SUDO_LIST_TIMEOUT_S).returncode == 0
    except (OSError, ValueError, subprocess.SubprocessError):
        return False


def _wait_for_others(uuid: str) -> None:
    """Wait until no other nvidia-smi changes a GPU.

    An nvidia-smi continues after the process that started it was killed. It would set its limit
    after the previous limit is restored. Only processes of root and of this user count, by the real
    user: any user can start a program of any name, but not as root. A program that runs as root for
    its caller (setuid), as sudo does before its checks, keeps the caller's.
    """
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


def _watts(milliwatts: int | None) -> float | None:
    return scaled(valid(milliwatts), 1e-3)
