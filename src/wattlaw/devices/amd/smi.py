"""The library of AMD SMI (``libamd_smi.so``) by its Python binding, where both are installed."""

import contextlib
import ctypes
import importlib
import io
from typing import Any, Self

from wattlaw.errors import NotAvailable, NotPermitted, one_line

__all__ = ["AmdSmi", "number"]

#: The values with which the library says "not available": the greatest of 16, 32 and 64 bits.
_SENTINELS = frozenset({2**16 - 1, 2**32 - 1, 2**64 - 1})


class AmdSmi:
    """The loaded library; ``close`` releases it."""

    def __init__(self, binding: Any) -> None:
        self.binding = binding
        self._is_open = True
        self._handles = {
            binding.amdsmi_get_gpu_device_bdf(handle): handle
            for handle in binding.amdsmi_get_processor_handles()
        }

    @classmethod
    def open(cls) -> Self:
        """Load the binding and its library; raises ``NotAvailable`` if that fails.

        Without the library the binding prints lines and raises errors of many kinds.
        """
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                binding = importlib.import_module("amdsmi")
        except ModuleNotFoundError:
            raise NotAvailable("the package amdsmi is not installed") from None
        except KeyError:
            raise NotAvailable("libamd_smi.so of AMD SMI cannot be loaded") from None
        except Exception as error:  # such as a library that lacks a function of the binding
            message = f"the library of AMD SMI cannot be loaded: {one_line(error)}"
            raise NotAvailable(message) from None
        try:
            binding.amdsmi_init()
            return cls(binding)
        except Exception as error:
            message = f"the library of AMD SMI does not answer: {one_line(error)}"
            raise NotAvailable(message) from None

    def handle(self, bus_id: str) -> Any | None:
        """Return the library's handle of a GPU, None if it does not list the GPU."""
        return self._handles.get(bus_id)

    def read(self, function: str, handle: Any, *arguments: Any) -> Any | None:
        """Return what a function returns, None if the library or the binding reports an error."""
        try:
            return getattr(self.binding, function)(handle, *arguments)
        except Exception:  # the binding also raises ValueError and others on odd data
            return None

    def power_limit_cycles(self, handle: Any) -> tuple[int, int] | None:
        """Return the firmware's cycles, and those at the power limit; None if it counts none.

        The binding's own function for this takes a hundred times as long for its many fields.
        """
        wrapper = self.binding.amdsmi_wrapper
        try:
            metrics = wrapper.amdsmi_gpu_metrics_t()
            status = wrapper.amdsmi_get_gpu_metrics_info(handle, ctypes.byref(metrics))
            cycles, limited = metrics.accumulation_counter, metrics.ppt_residency_acc
        except Exception:  # such as a binding whose structure has no such field
            return None
        if status != wrapper.AMDSMI_STATUS_SUCCESS or {cycles, limited} & _SENTINELS:
            return None
        return int(cycles), int(limited)

    def change(self, device: str, function: str, handle: Any, *arguments: Any) -> None:
        """Call a function that changes a GPU.

        Raises ``NotPermitted`` if this user may not, and ``NotAvailable`` for any other error.
        """
        try:
            getattr(self.binding, function)(handle, *arguments)
        except Exception as error:
            message = f"{device}: {function}: {one_line(error)}"
            no_permission = self.binding.amdsmi_wrapper.AMDSMI_STATUS_NO_PERM
            if getattr(error, "err_code", None) == no_permission:
                message += ": setting limits takes root, or a user who may write the driver's files"
                raise NotPermitted(message) from None
            raise NotAvailable(message) from None

    def close(self) -> None:
        """Release the library; repeated calls do nothing."""
        if self._is_open:
            self._is_open = False
            with contextlib.suppress(Exception):
                self.binding.amdsmi_shut_down()


def number(value: object, maximum: float) -> float | None:
    """Return a number between 0 and a maximum; None for anything else, such as ``"N/A"``."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value in _SENTINELS:
        return None
    return value if 0 <= value <= maximum else None
