"""The NVIDIA driver, the GPUs that this process may use, and the conversion of driver errors."""

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pynvml

from wattlaw.common.errors import NotAvailable, NotPermitted, one_line
from wattlaw.measure.devices.meter import Accelerator
from wattlaw.measure.devices.visible import GpuSelection, parse_ordinal, select

T = TypeVar("T")

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_LOST_ERRORS = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_GPU_IS_LOST,
        pynvml.NVML_ERROR_RESET_REQUIRED,
        pynvml.NVML_ERROR_GPU_NOT_FOUND,
    }
)
#: The GPU, the driver or this user does not support the call, or there are no new data.
_NO_VALUE_ERRORS = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_NO_DATA,
        pynvml.NVML_ERROR_NOT_FOUND,
    }
)
#: The values with which drivers say "not available", besides negative ones such as -1
#: (NVML_VALUE_NOT_AVAILABLE): the greatest numbers of 32 and 64 bits.
_SENTINELS = frozenset({2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1})


@dataclass(frozen=True)
class NvidiaGpu:
    """One physical GPU. The machine lists its GPUs in the order of PCI bus ids."""

    uuid: str
    name: str
    minor: int | None = None
    mig_uuids: tuple[str, ...] = ()
    is_shared: bool = False  # in MIG mode: others may use the rest of it
    handle: Any = None  # of the driver


class GpuLost(Exception):
    """A GPU that will not answer again."""


def query(call: Callable[..., T], *arguments: Any) -> T | None:
    """Call the driver; None if the GPU does not support the call or has no new data. ``NVMLError``
    is any other error, which may not occur the next time."""
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        if error.value in _LOST_ERRORS:
            raise GpuLost(describe(error)) from None
        if error.value in _NO_VALUE_ERRORS:
            return None
        raise


def query_optional(call: Callable[..., T], *arguments: Any) -> T | None:
    """As ``query``, for a value that is no part of an energy; None on any error but ``GpuLost``."""
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
    return None if value is None else value * factor


def watts(milliwatts: float | None) -> float | None:
    return scaled(valid(milliwatts), 1e-3)


def raise_on_error(code: int) -> bool:
    if code != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(code)
    return True


def describe(error: pynvml.NVMLError) -> str:
    return f"{error} (NVML error {error.value})"


@contextlib.contextmanager
def open_driver() -> Iterator[list[NvidiaGpu]]:
    """Load the driver for a block, and give all GPUs that answer, in the order of PCI bus ids.
    Raises ``NotAvailable`` if there is none, or it does not answer, also in the block."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
            raise NotAvailable("no NVIDIA driver (libnvidia-ml.so.1 not found)") from None
        if error.value == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
            message = f"{describe(error)}: the driver was updated under the kernel; reboot"
            raise NotAvailable(message) from None
        kind = NotPermitted if error.value == pynvml.NVML_ERROR_NO_PERMISSION else NotAvailable
        raise kind(f"the NVIDIA driver does not answer: {describe(error)}") from None
    try:
        gpus = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            # A lost GPU, or one that this process may not use, is left out.
            with contextlib.suppress(pynvml.NVMLError, GpuLost):
                gpus.append(_gpu(pynvml.nvmlDeviceGetHandleByIndex(index)))
        yield gpus
    except (pynvml.NVMLError, GpuLost) as error:
        raise NotAvailable(f"the NVIDIA driver does not answer: {one_line(error)}") from None
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _gpu(handle: Any) -> NvidiaGpu:
    uuid, name = pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetName(handle)
    mig = query(pynvml.nvmlDeviceGetMigMode, handle)
    minor = query(pynvml.nvmlDeviceGetMinorNumber, handle)
    is_shared = bool(mig and mig[0])
    parts = []
    count = query_optional(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) if is_shared else 0
    for index in range(count or 0):
        part = query_optional(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
        if part is not None and (part_uuid := query_optional(pynvml.nvmlDeviceGetUUID, part)):
            parts.append(part_uuid)
    return NvidiaGpu(uuid, name, minor, tuple(parts), is_shared, handle)


def select_gpus(gpus: Sequence[NvidiaGpu], environ: Mapping[str, str]) -> GpuSelection[NvidiaGpu]:
    """CUDA's rules are in the CUDA Programming Guide, appendix on environment variables. Integers
    are CUDA ordinals, while NVML counts in the order of PCI bus ids. The two agree if
    ``CUDA_DEVICE_ORDER`` is ``PCI_BUS_ID``, or if all GPUs are of one model: else ordinals are
    ambiguous (``NotAvailable``)."""
    return select(
        gpus, environ, {_VISIBLE: "CUDA"}, lambda left, entry: _find(left, entry, environ)
    )


def _find(
    gpus: Sequence[NvidiaGpu], entry: str, environ: Mapping[str, str]
) -> tuple[NvidiaGpu, str] | None:
    """Return the GPU of one entry of the list and the device's id; None for none, or several."""
    ordinal = parse_ordinal(entry)
    if ordinal is not None:
        is_ordered = environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
        if not is_ordered and len({gpu.name for gpu in gpus}) > 1:
            raise NotAvailable(
                f"{_VISIBLE} has the ordinal {entry} on a machine with several GPU models; "
                "set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name GPUs by UUID"
            )
        return (gpus[ordinal], gpus[ordinal].uuid) if ordinal < len(gpus) else None
    matches: list[tuple[NvidiaGpu, str]] = []
    if entry.startswith("MIG-GPU-"):  # MIG-<GPU's UUID>/<GPU instance>/<compute instance>
        uuid = entry.removeprefix("MIG-").split("/")[0]
        matches = [(gpu, entry) for gpu in gpus if gpu.uuid == uuid]
    elif entry.startswith("MIG-"):
        for gpu in gpus:
            parts = [part for part in gpu.mig_uuids if part.startswith(entry)]
            matches += [(gpu, parts[0] if len(parts) == 1 else entry)] if parts else []
    elif entry.startswith("GPU-"):
        matches = [(gpu, gpu.uuid) for gpu in gpus if gpu.uuid.startswith(entry)]
    return matches[0] if len(matches) == 1 else None


def _visible_devices() -> dict[str, str]:
    with open_driver() as gpus:
        selection = select_gpus(gpus, os.environ)
    ids: dict[str, str] = {}
    for device, gpu in (selection.devices or {gpu.uuid: gpu for gpu in selection.gpus}).items():
        parts = gpu.mig_uuids if device == gpu.uuid else ()  # CUDA uses instances in MIG mode
        ids.update(dict.fromkeys(parts or (device,), gpu.uuid))
    return ids


NVIDIA = Accelerator(
    torch_kind="cuda",
    backend="nccl",
    id_prefixes=("GPU-", "MIG-"),
    visible=_visible_devices,
    environment=lambda ids: {_VISIBLE: ",".join(ids)},
    driver_files=("/dev/nvidiactl", "/dev/dxg"),
    order=0,
)
