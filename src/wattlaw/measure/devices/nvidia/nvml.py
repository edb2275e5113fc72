"""The NVIDIA driver, the GPUs that this process may use, and the conversion of driver errors."""

import contextlib
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import pynvml

from wattlaw.common.errors import NotAvailable, NotPermitted, one_line
from wattlaw.measure.devices.meter import Accelerator
from wattlaw.measure.devices.visible import GpuSelection, parse_ordinal, select

T = TypeVar("T")

_VISIBLE = "CUDA_VISIBLE_DEVICES"
#: CUDA reads an integer as strtoul does, and ignores what follows: ``1gpu2`` is 1. A hexadecimal
#: number is not guessed at.
_ORDINAL = re.compile(r"(?:\+|-(?=0+(?![0-9])))?([0-9]+)(?![0-9xX])", re.ASCII)

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
    return None if value is None else value * factor


def raise_on_error(code: int) -> bool:
    if code != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(code)
    return True


def describe(error: pynvml.NVMLError) -> str:
    return f"{error} (NVML error {error.value})"


class Driver:
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
                continue  # a lost GPU, or one that this process may not use
            gpus.append(NvidiaGpu(uuid, name, minor, parts, is_shared, handle))
        return gpus

    def visible(self) -> GpuSelection[NvidiaGpu]:
        return select_gpus(self.gpus(), os.environ)

    def by_uuid(self, uuids: tuple[str, ...]) -> GpuSelection[NvidiaGpu]:
        """Return GPUs by UUID; raises ``NotAvailable`` if one is not on this machine."""
        by_uuid = {gpu.uuid: gpu for gpu in self.gpus()}
        for uuid in uuids:
            if uuid not in by_uuid:
                raise NotAvailable(f"GPU {uuid} is not on this machine")
        return GpuSelection(tuple(by_uuid[uuid] for uuid in dict.fromkeys(uuids)))

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()


@contextlib.contextmanager
def open_driver(*, keep: bool = False) -> Iterator[Driver]:
    """Open the driver for a block; with ``keep`` it stays open after a block without an error.

    Errors of the driver in the block become ``NotAvailable``.
    """
    driver, is_kept = Driver.open(), False
    try:
        yield driver
        is_kept = keep
    except (pynvml.NVMLError, GpuLost) as error:
        raise NotAvailable(f"the NVIDIA driver does not answer: {one_line(error)}") from None
    finally:
        if not is_kept:
            driver.close()


def _mig_uuids(handle: Any) -> tuple[str, ...]:
    uuids = []
    for index in range(query_optional(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        part = query_optional(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
        uuid = query_optional(pynvml.nvmlDeviceGetUUID, part) if part is not None else None
        uuids += [decode(uuid)] if uuid else []
    return tuple(uuids)


def decode(text: str | bytes) -> str:
    return text.decode() if isinstance(text, bytes) else text


def select_gpus(gpus: Sequence[NvidiaGpu], environ: Mapping[str, str]) -> GpuSelection[NvidiaGpu]:
    """Return the GPUs that a process with this environment may use, as CUDA reads it.

    CUDA's rules are in the CUDA Programming Guide, appendix on environment variables. Integers
    are CUDA ordinals, while NVML counts in the order of PCI bus ids. The two agree if
    ``CUDA_DEVICE_ORDER`` is ``PCI_BUS_ID``, and if all GPUs are of one model.

    Raises ``NotAvailable`` if the environment has ordinals on a machine with several models, which
    are ambiguous.
    """
    return select(
        gpus, environ, {_VISIBLE: "CUDA"}, lambda left, entry: _find(left, entry, environ)
    )


def _find(
    gpus: Sequence[NvidiaGpu], entry: str, environ: Mapping[str, str]
) -> tuple[NvidiaGpu, str] | None:
    """Return the GPU of one entry of the list and the device's id; None for none, or several."""
    number = _ORDINAL.match(entry)
    if number is not None:
        ordinal = parse_ordinal(number[1].lstrip("0") or "0")
        is_ordered = environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
        if not is_ordered and len({gpu.name for gpu in gpus}) > 1:
            raise NotAvailable(
                f"{_VISIBLE} has the ordinal {entry} on a machine with several GPU models; "
                "set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name GPUs by UUID"
            )
        if ordinal is None or ordinal >= len(gpus):
            return None
        return gpus[ordinal], gpus[ordinal].uuid
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
    ids: dict[str, str] = {}
    with open_driver() as driver:
        selection = driver.visible()
    listed = selection.devices or {gpu.uuid: gpu for gpu in selection.gpus}
    for device, gpu in listed.items():  # of a GPU in MIG mode, CUDA uses its instances
        parts = gpu.mig_uuids if device == gpu.uuid else ()
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
