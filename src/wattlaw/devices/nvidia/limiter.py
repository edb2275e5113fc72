"""Power limits and clock locks of NVIDIA GPUs: by NVML, or by ``sudo -n nvidia-smi``."""

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from typing import Any, Self

import psutil
import pynvml

from wattlaw.devices.limiter import LimitState
from wattlaw.devices.nvidia.driver import Driver, GpuLost, NvidiaGpu, describe, known, query
from wattlaw.errors import NotAvailable, NotPermitted, one_line

_SMI_TIMEOUT_S = 60
#: How long a setting that somebody else has begun is waited for.
_OTHERS_S = 10.0
_SETTINGS = frozenset({"-pl", "-lgc", "-rgc"})
UNLOCK_OPTIONS: tuple[str, ...] = ("-rgc",)
_SUDO_LIST_TIMEOUT_S = 10


class NvidiaLimiter:
    """Limits boards by NVML, which takes root."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._boards = {board.uuid: board for board in driver.gpus()}

    @classmethod
    def open(cls) -> Self:
        """Load the driver; raises ``NotAvailable`` where there is none, or no board."""
        driver = Driver.open()
        try:
            limiter = cls(driver)
        except (pynvml.NVMLError, GpuLost) as error:
            driver.close()
            raise NotAvailable(f"the NVIDIA driver does not answer: {one_line(error)}") from None
        if not limiter._boards:
            driver.close()
            raise NotAvailable("the NVIDIA driver lists no GPU")
        return limiter

    def devices(self) -> list[str]:
        """Return the UUIDs of all boards of the machine."""
        return list(self._boards)

    def read(self, device: str) -> LimitState:
        """Return limits and ranges of a board."""
        board = self._board(device)
        handle = board.handle
        try:
            limits = query(pynvml.nvmlDeviceGetPowerManagementLimitConstraints, handle)
            clocks = _clocks(handle)
            return LimitState(
                device,
                board.name,
                _watts(query(pynvml.nvmlDeviceGetPowerManagementLimit, handle)),
                _watts(query(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)),
                _watts(query(pynvml.nvmlDeviceGetPowerManagementDefaultLimit, handle)),
                _watts(limits[0] if limits else None),
                _watts(limits[1] if limits else None),
                min(clocks, default=None),
                max(clocks, default=None),
                board.is_shared,
                _is_on(query(pynvml.nvmlDeviceGetPersistenceMode, handle)),
            )
        except (pynvml.NVMLError, GpuLost) as error:
            raise NotAvailable(f"{device}: does not answer: {one_line(error)}") from None

    def set_power_limit(self, device: str, watts: float) -> None:
        """Set the power limit, to the milliwatt."""
        self._set(device, pynvml.nvmlDeviceSetPowerManagementLimit, round(watts * 1000))

    def lock_clock(self, device: str, mhz: float) -> None:
        """Lock the graphics clock, and with it the SM clock."""
        self._set(device, pynvml.nvmlDeviceSetGpuLockedClocks, round(mhz), round(mhz))

    def unlock_clock(self, device: str) -> None:
        """Take every lock of the graphics clock away; a board that knows no locks has none."""
        with contextlib.suppress(_NotSupported):
            self._set(device, pynvml.nvmlDeviceResetGpuLockedClocks)

    def close(self) -> None:
        """Let the driver go."""
        self._driver.close()

    def _set(self, device: str, call: Callable[..., None], *values: int) -> None:
        board = self._board(device)
        try:
            call(board.handle, *values)
        except pynvml.NVMLError as error:
            told = f"{device}: {describe(error)}"
            if error.value == pynvml.NVML_ERROR_NO_PERMISSION:
                raise NotPermitted(f"{told}: setting limits takes root") from None
            unknown = error.value == pynvml.NVML_ERROR_NOT_SUPPORTED
            raise (_NotSupported if unknown else NotAvailable)(told) from None

    def _board(self, device: str) -> NvidiaGpu:
        board = self._boards.get(device)
        if board is None:
            raise NotAvailable(f"GPU {device} is not on this machine")
        return board


class _NotSupported(NotAvailable):
    """The board cannot do this."""


class NvidiaSmiLimiter(NvidiaLimiter):
    """Limits boards by ``sudo -n nvidia-smi``, for users whom sudo lets run it without a password.

    ``docs/limits.md`` has the lines for sudoers.
    """

    @classmethod
    def open(cls) -> Self:
        """Find the programs; raises ``NotAvailable`` where one is missing."""
        for program in ("sudo", "nvidia-smi"):
            if shutil.which(program) is None:
                raise NotAvailable(f"{program} is not there")
        return super().open()

    def read(self, device: str) -> LimitState:
        """Return limits and ranges of a board, once nobody is changing them."""
        _wait_for_others(self._board(device).uuid)
        return super().read(device)

    def set_power_limit(self, device: str, watts: float) -> None:
        """Set the power limit, to the milliwatt."""
        self._smi(device, *set_power_options(watts))

    def lock_clock(self, device: str, mhz: float) -> None:
        """Lock the graphics clock."""
        self._smi(device, "-lgc", f"{round(mhz)},{round(mhz)}")

    def unlock_clock(self, device: str) -> None:
        """Take every lock of the graphics clock away; a board that knows no locks has none."""
        with contextlib.suppress(_NotSupported):
            self._smi(device, *UNLOCK_OPTIONS)

    def _smi(self, device: str, *options: str) -> None:
        sudo, smi = shutil.which("sudo"), shutil.which("nvidia-smi")
        if sudo is None or smi is None:
            raise NotAvailable("sudo or nvidia-smi is not there any more")
        uuid = self._board(device).uuid
        _wait_for_others(uuid)
        try:
            done = subprocess.run(
                [sudo, "-n", smi, "-i", uuid, *options],
                capture_output=True,
                stdin=subprocess.DEVNULL,
                encoding="utf-8",
                errors="replace",
                timeout=_SMI_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise NotAvailable(f"{device}: nvidia-smi: {one_line(error)}") from None
        if done.returncode:
            told = " ".join(f"{done.stdout} {done.stderr}".split())[-300:]
            # sudo refuses with 1 and on stderr, in the user's language; nvidia-smi talks on stdout.
            by_sudo = done.returncode == 1 and not done.stdout.strip()
            kind = NotPermitted if by_sudo else _refusal(told.lower())
            raise kind(f"{device}: sudo -n nvidia-smi: {told}")


def _refusal(told: str) -> type[NotAvailable]:
    if "permission" in told:
        return NotPermitted
    return _NotSupported if "not supported" in told else NotAvailable


def set_power_options(watts: float) -> tuple[str, ...]:
    """Return the options of nvidia-smi that set a power limit, to the milliwatt."""
    return "-pl", f"{watts:.3f}".rstrip("0").rstrip(".")


def sudo_allows(user: str, device: str, *options: str) -> bool:
    """Say whether sudo lets a user run nvidia-smi with options on a board; only root can ask."""
    sudo, smi = shutil.which("sudo"), shutil.which("nvidia-smi")
    if sudo is None or smi is None:
        return False
    try:
        done = subprocess.run(
            [sudo, "-n", "-l", "-U", user, smi, "-i", device, *options],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_SUDO_LIST_TIMEOUT_S,
            check=False,
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


def _wait_for_others(uuid: str) -> None:
    """Wait until no other nvidia-smi changes a board.

    One that a process has started before it was killed goes on without it, and would set its
    limit after the one that gives back.
    """
    end_s = time.monotonic() + _OTHERS_S
    while pids := _changing_pids(uuid):
        if time.monotonic() > end_s:
            raise NotAvailable(f"{uuid}: another nvidia-smi (pid {pids[0]}) is changing it")
        time.sleep(0.05)


def _changing_pids(uuid: str) -> list[int]:
    """Return the pids of what changes a board: root's, as sudo starts it, or our own.

    By its real user: anybody can start a program of any name, but not as root. A program that runs
    as root for its caller (setuid), as sudo does before it has checked anything, keeps that user.
    """
    trusted = {0, os.getuid()}
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.uids().real in trusted and _changes_gpu(process.cmdline(), uuid):
                found.append(process.pid)
    return found


def _changes_gpu(line: list[str], uuid: str) -> bool:
    has_smi = any(word.endswith("nvidia-smi") for word in line[:4])  # sudo may be before it
    return has_smi and uuid in line and not _SETTINGS.isdisjoint(line)


def _clocks(handle: Any) -> list[float]:
    """Return the graphics clocks that the board supports at its highest memory clock."""
    memory = query(pynvml.nvmlDeviceGetSupportedMemoryClocks, handle)
    if not memory:
        return []
    return query(pynvml.nvmlDeviceGetSupportedGraphicsClocks, handle, max(memory)) or []


def _is_on(state: int | None) -> bool | None:
    return None if state is None else state == pynvml.NVML_FEATURE_ENABLED


def _watts(milliwatts: int | None) -> float | None:
    told = known(milliwatts)
    return None if told is None else told * 1e-3
