"""The NVIDIA driver, opened once, with its GPUs; its errors become errors of wattlaw."""

import contextlib
import math
import os
import threading
from collections.abc import Callable
from typing import Any, Self, TypeVar

import pynvml

from wattlaw.devices.nvidia.visible import GpuSelection, NvidiaGpu, select_gpus
from wattlaw.errors import NotAvailable, NotPermitted

T = TypeVar("T")

_DRIVER_TIMEOUT_S = 15.0

#: The GPU or the driver is lost. It will not answer again.
_LOST_ERRORS = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_GPU_IS_LOST,
        pynvml.NVML_ERROR_RESET_REQUIRED,
        pynvml.NVML_ERROR_GPU_NOT_FOUND,
    }
)
#: The GPU, the driver or this user does not support the call, now or later.
_UNSUPPORTED_ERRORS = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
    }
)
#: There are no new data. This is no error.
_NO_DATA_ERRORS = frozenset({pynvml.NVML_ERROR_NO_DATA, pynvml.NVML_ERROR_NOT_FOUND})


#: The values with which drivers say "not available", besides negative ones such as -1
#: (NVML_VALUE_NOT_AVAILABLE): the greatest numbers of 32 and 64 bits.
_SENTINELS = frozenset({2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1})


class GpuLost(Exception):
    """A GPU that will not answer again."""


def query(call: Callable[..., T], *arguments: Any) -> T | None:
    """Call the driver; return None if the GPU does not support the call or has no new data.

    Raises ``GpuLost`` if the GPU is lost, and ``NVMLError`` for any other error, which may not
    occur the next time.
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
    """Call the driver for a value that is no part of an energy; return None on any error.

    Raises ``GpuLost`` if the GPU is lost.
    """
    try:
        return query(call, *arguments)
    except pynvml.NVMLError:
        return None


def valid(value: float | None, maximum: float = math.inf) -> float | None:
    """Return a value between 0 and a maximum; None if it is outside or means "not available"."""
    if value is None or value in _SENTINELS or not 0 <= value <= maximum or value == math.inf:
        return None
    return value


def scaled(value: float | None, factor: float) -> float | None:
    """Return a value in another unit; None stays None."""
    return None if value is None else value * factor


def raise_on_error(code: int) -> bool:
    """Raise the error for a return code of the driver."""
    if code != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(code)
    return True


def describe(error: pynvml.NVMLError) -> str:
    """Return the message of a driver error with its number."""
    return f"{error} (NVML error {error.value})"


class Driver:
    """The loaded driver library; ``close`` releases it."""

    def __init__(self) -> None:
        self.version = decode(pynvml.nvmlSystemGetDriverVersion())
        self._is_open = True

    @classmethod
    def open(cls) -> Self:
        """Load the driver's library.

        Raises ``NotAvailable`` if there is no NVIDIA driver, or it does not answer, and
        ``NotPermitted`` if this user may not use it.
        """
        try:
            pynvml.nvmlInit()
            return cls()
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
                message = "no NVIDIA driver (libnvidia-ml.so.1 not found)"
                raise NotAvailable(message) from None
            if error.value == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
                message = f"{describe(error)}: the driver was updated under the kernel; reboot"
                raise NotAvailable(message) from None
            kind = NotPermitted if error.value == pynvml.NVML_ERROR_NO_PERMISSION else NotAvailable
            raise kind(f"the NVIDIA driver does not answer: {describe(error)}") from None

    def gpus(self) -> list[NvidiaGpu]:
        """Return every GPU of the machine that answers, in the order of PCI bus ids."""
        gpus = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                uuid = decode(pynvml.nvmlDeviceGetUUID(handle))
                name = decode(pynvml.nvmlDeviceGetName(handle))
                mig = query(pynvml.nvmlDeviceGetMigMode, handle)
                minor = query(pynvml.nvmlDeviceGetMinorNumber, handle)
                is_shared = bool(mig and mig[0])
                parts = _mig_uuids(handle) if is_shared else ()
            except (pynvml.NVMLError, GpuLost):
                continue  # a GPU that has fallen off the bus, or is not ours
            gpus.append(NvidiaGpu(uuid, name, minor, parts, is_shared, handle))
        return gpus

    def visible(self) -> GpuSelection:
        """Return the GPUs that our environment makes visible, with notes."""
        return select_gpus(self.gpus(), os.environ)

    def by_uuid(self, uuids: tuple[str, ...]) -> GpuSelection:
        """Return GPUs by UUID; raises ``NotAvailable`` if one is not on this machine."""
        by_uuid = {gpu.uuid: gpu for gpu in self.gpus()}
        for uuid in uuids:
            if uuid not in by_uuid:
                raise NotAvailable(f"GPU {uuid} is not on this machine")
        return GpuSelection(tuple(by_uuid[uuid] for uuid in dict.fromkeys(uuids)))

    def close(self) -> None:
        """Release the driver, which may be gone already."""
        if self._is_open:
            self._is_open = False
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()


def _mig_uuids(handle: Any) -> tuple[str, ...]:
    uuids = []
    for index in range(query_optional(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        part = query_optional(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
        uuid = query_optional(pynvml.nvmlDeviceGetUUID, part) if part is not None else None
        uuids += [decode(uuid)] if uuid else []
    return tuple(uuids)


def decode(text: str | bytes) -> str:
    """Return a text of the driver, whose bindings give bytes or text."""
    return text.decode() if isinstance(text, bytes) else text


def visible_gpu_ids() -> list[str]:
    """Return the UUIDs of the GPUs that our environment makes visible; none without a driver.

    A driver that does not answer for some seconds counts as none, so that the caller goes on.
    """
    uuids: list[str] = []
    thread = threading.Thread(target=lambda: uuids.extend(_visible_gpu_ids()), daemon=True)
    thread.start()
    thread.join(_DRIVER_TIMEOUT_S)
    return [] if thread.is_alive() else uuids


def _visible_gpu_ids() -> list[str]:
    try:
        driver = Driver.open()
    except NotAvailable:
        return []
    try:
        return [gpu.uuid for gpu in driver.visible().gpus]
    except (NotAvailable, GpuLost, pynvml.NVMLError):
        return []
    finally:
        driver.close()
