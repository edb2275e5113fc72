"""The NVIDIA driver, opened once, with its boards; what it says no to, in our words."""

import contextlib
import math
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import pynvml

from wattlaw.devices.nvidia.visible import GpuListing, select_gpus
from wattlaw.errors import NotAvailable, NotPermitted

T = TypeVar("T")

_DRIVER_TIMEOUT_S = 15.0

#: The board or the driver is gone; asking again is of no use.
_LOST_ERRORS = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_GPU_IS_LOST,
        pynvml.NVML_ERROR_RESET_REQUIRED,
        pynvml.NVML_ERROR_GPU_NOT_FOUND,
    }
)
#: The board, the driver or this user cannot do it, now or later.
_UNSUPPORTED_ERRORS = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
    }
)
#: There is nothing new; not an error.
_NO_DATA_ERRORS = frozenset({pynvml.NVML_ERROR_NO_DATA, pynvml.NVML_ERROR_NOT_FOUND})


#: What drivers say instead of "not available": -1, as NVML_VALUE_NOT_AVAILABLE, and the greatest
#: number, of 32 and 64 bits.
_SENTINELS = frozenset({2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1})


class GpuLost(Exception):
    """A board that will not answer any more."""


@dataclass(frozen=True)
class NvidiaGpu:
    """One physical board, by its UUID."""

    uuid: str
    name: str
    handle: Any
    is_shared: bool  # in MIG mode: others may use the rest of it


def query(call: Callable[..., T], *arguments: Any) -> T | None:
    """Return what a driver call gives, None where the board cannot do it or has nothing new.

    Raises
    ------
    GpuLost
        The board is lost.
    pynvml.NVMLError
        Anything else; it may be different the next time.
    """
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        if error.value in _LOST_ERRORS:
            raise GpuLost(describe(error)) from None
        if error.value in _UNSUPPORTED_ERRORS or error.value in _NO_DATA_ERRORS:
            return None
        raise


def query_optional(call: Callable[..., T], *arguments: Any) -> T | None:
    """Return what a call gives that is no part of an energy: failing, it costs its own value only.

    Raises
    ------
    GpuLost
        The board is lost.
    """
    try:
        return query(call, *arguments)
    except pynvml.NVMLError:
        return None


def known(value: float | None, most: float = math.inf) -> float | None:
    """Return a value that is a number from 0 to the greatest that can be, else None."""
    if value is None or value in _SENTINELS or not 0 <= value <= most or value == math.inf:
        return None
    return value


def raise_on_error(code: int) -> bool:
    """Raise the error that a call of the driver returned as a number."""
    if code != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(code)
    return True


def describe(error: pynvml.NVMLError) -> str:
    """Return what the driver said."""
    return f"{error} (NVML error {error.value})"


class Driver:
    """The loaded driver library; ``close`` lets it go."""

    def __init__(self) -> None:
        self.version = decode(pynvml.nvmlSystemGetDriverVersion())
        self._is_open = True

    @classmethod
    def open(cls) -> Self:
        """Load the driver's library.

        Raises
        ------
        NotAvailable
            There is no NVIDIA driver here, or it does not answer.
        NotPermitted
            It is not this user's to use.
        """
        try:
            pynvml.nvmlInit()
            return cls()
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
                told = "no NVIDIA driver here (libnvidia-ml.so.1 is not there)"
                raise NotAvailable(told) from None
            if error.value == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
                told = f"{describe(error)}: the driver was updated under the kernel; reboot"
                raise NotAvailable(told) from None
            kind = NotPermitted if error.value == pynvml.NVML_ERROR_NO_PERMISSION else NotAvailable
            raise kind(f"the NVIDIA driver does not answer: {describe(error)}") from None

    def gpus(self) -> list[NvidiaGpu]:
        """Return every board of the machine that answers, in the order of PCI bus ids."""
        return [board for board, _ in self._listed()]

    def visible(
        self, environ: Mapping[str, str] | None = None
    ) -> tuple[list[NvidiaGpu], list[str]]:
        """Return the boards that an environment (by default ours) makes visible, with notes."""
        pairs = self._listed()
        chosen = select_gpus(
            [listed for _, listed in pairs], os.environ if environ is None else environ
        )
        by_uuid = {board.uuid: board for board, _ in pairs}
        return [by_uuid[listed.uuid] for listed in chosen.boards], list(chosen.notes)

    def named(self, uuids: tuple[str, ...]) -> list[NvidiaGpu]:
        """Return boards by UUID; raises ``NotAvailable`` for one that is not here."""
        by_uuid = {board.uuid: board for board in self.gpus()}
        for uuid in uuids:
            if uuid not in by_uuid:
                raise NotAvailable(f"GPU {uuid} is not on this machine")
        return [by_uuid[uuid] for uuid in dict.fromkeys(uuids)]

    def close(self) -> None:
        """Let the driver go; it may be gone already."""
        if self._is_open:
            self._is_open = False
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()

    def _listed(self) -> list[tuple[NvidiaGpu, GpuListing]]:
        found = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                uuid, name = (
                    decode(pynvml.nvmlDeviceGetUUID(handle)),
                    decode(pynvml.nvmlDeviceGetName(handle)),
                )
                mig = query(pynvml.nvmlDeviceGetMigMode, handle)
                minor = query(pynvml.nvmlDeviceGetMinorNumber, handle)
                parts = _mig_uuids(handle) if mig and mig[0] else ()
            except (pynvml.NVMLError, GpuLost):
                continue  # a board that has fallen off the bus, or is not ours
            board = NvidiaGpu(uuid, name, handle, is_shared=bool(mig and mig[0]))
            found.append((board, GpuListing(uuid, name, minor, parts)))
        return found


def _mig_uuids(handle: Any) -> tuple[str, ...]:
    found = []
    for index in range(query_optional(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        part = query_optional(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
        uuid = query_optional(pynvml.nvmlDeviceGetUUID, part) if part is not None else None
        found += [decode(uuid)] if uuid else []
    return tuple(found)


def decode(told: str | bytes) -> str:
    """Return what the driver told as text; its bindings give bytes or text."""
    return told.decode() if isinstance(told, bytes) else told


def visible_gpu_ids() -> list[str]:
    """Return the UUIDs of the boards that our environment makes visible; none without a driver.

    A driver that does not answer for some seconds is as none: whoever asks has other work to do.
    """
    found: list[str] = []
    asking = threading.Thread(target=lambda: found.extend(_visible_gpu_ids()), daemon=True)
    asking.start()
    asking.join(_DRIVER_TIMEOUT_S)
    return [] if asking.is_alive() else found


def _visible_gpu_ids() -> list[str]:
    try:
        driver = Driver.open()
    except NotAvailable:
        return []
    try:
        return [board.uuid for board in driver.visible()[0]]
    except (NotAvailable, GpuLost, pynvml.NVMLError):
        return []
    finally:
        driver.close()
