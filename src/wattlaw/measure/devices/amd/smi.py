"""The library of AMD SMI (``libamd_smi.so``) by its Python binding, where both are installed."""

import contextlib
import ctypes
import importlib
import io
from dataclasses import dataclass
from typing import Any, Self

from wattlaw.common.errors import NotAvailable, NotPermitted, one_line

#: The library's values for "not available": the greatest of 16, 32 and 64 bits.
_SENTINELS = frozenset({2**16 - 1, 2**32 - 1, 2**64 - 1})


class AmdSmi:
    def __init__(self, binding: Any) -> None:
        self._binding = binding
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
        except (Exception, SystemExit) as error:  # such as a library that lacks a function
            raise NotAvailable(f"AMD SMI cannot be loaded: {one_line(error)}") from None
        try:
            binding.amdsmi_init()
            return cls(binding)
        except (Exception, SystemExit) as error:
            raise NotAvailable(f"AMD SMI does not answer: {one_line(error)}") from None

    def gpu(self, bus_id: str) -> "SmiGpu | None":
        handle = self._handles.get(bus_id)
        return None if handle is None else SmiGpu(self._binding, handle)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            with contextlib.suppress(Exception):
                self._binding.amdsmi_shut_down()


@dataclass(frozen=True)
class SmiGpu:
    _binding: Any
    _handle: Any

    def read(self, function: str, *arguments: object) -> Any | None:
        """Return what a function returns, None if the library or the binding reports an error."""
        try:
            return getattr(self._binding, function)(self._handle, *arguments)
        except Exception:  # the binding also raises ValueError and others on odd data
            return None

    def clock_mhz(self) -> object:
        """Return the graphics clock, in whatever form the binding states it; None on an error."""
        clock = self.read("amdsmi_get_clock_info", self._binding.AmdSmiClkType.GFX)
        return clock and clock.get("clk")

    def power_limit_cycles(self) -> tuple[int, int] | None:
        """Return the firmware's cycles, and those at the power limit; None if it counts none.

        The binding's own function converts some hundred fields each time.
        """
        wrapper = self._binding.amdsmi_wrapper
        try:
            metrics = wrapper.amdsmi_gpu_metrics_t()
            status = wrapper.amdsmi_get_gpu_metrics_info(self._handle, ctypes.byref(metrics))
            cycles, limited = metrics.accumulation_counter, metrics.ppt_residency_acc
        except Exception:  # such as a binding whose structure has no such field
            return None
        is_known = status == wrapper.AMDSMI_STATUS_SUCCESS and not {cycles, limited} & _SENTINELS
        return (int(cycles), int(limited)) if is_known else None

    def set_power_cap(self, device: str, microwatts: int) -> None:
        """Set the power limit.

        Raises ``NotPermitted`` if this user may not, and ``NotAvailable`` for any other error.
        """
        try:
            self._binding.amdsmi_set_power_cap(self._handle, 0, microwatts)
        except Exception as error:
            message = f"{device}: amdsmi_set_power_cap: {one_line(error)}"
            no_permission = self._binding.amdsmi_wrapper.AMDSMI_STATUS_NO_PERM
            if getattr(error, "err_code", None) == no_permission:
                raise NotPermitted(f"{message}: setting limits requires root") from None
            raise NotAvailable(message) from None


def number(value: object, maximum: float) -> float | None:
    """Return a number between 0 and a maximum; None for anything else, such as ``"N/A"``."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value in _SENTINELS:
        return None
    return value if 0 <= value <= maximum else None
