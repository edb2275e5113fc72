"""Field values: several readings of a GPU in one call of the driver, each with its time."""

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import pynvml

from wattlaw.devices.nvidia.driver import query, raise_on_error, valid

ENERGY = pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION
AVERAGE = pynvml.NVML_FI_DEV_POWER_AVERAGE
INSTANT = pynvml.NVML_FI_DEV_POWER_INSTANT
THROTTLED = pynvml.NVML_FI_DEV_PERF_POLICY_POWER
#: A timestamp of the driver that differs more from our time is not on the wall clock.
_MAX_OFFSET_US = 2_000_000

#: Which member of the driver's union holds a value of each type.
_MEMBER = {
    pynvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
}


class FieldValue(NamedTuple):
    """A value in the driver's unit (mJ, mW, ns), and its time in ns since 1970."""

    value: float
    t_ns: int


class Fields:
    """A fixed set of fields of one GPU.

    It calls the driver's library directly and reuses its memory, which nvidia-ml-py allocates at
    every call.
    """

    def __init__(self, handle: Any, wanted: Sequence[int | tuple[int, int]]) -> None:
        self._handle = handle
        self._values = (pynvml.c_nvmlFieldValue_t * len(wanted))()
        for place, field in enumerate(wanted):
            number, scope = field if isinstance(field, tuple) else (field, 0)
            self._values[place].fieldId, self._values[place].scopeId = number, scope

    def read(self, now_ns: int) -> dict[int, FieldValue]:
        """Return the available values by field number, with our time if the driver gives none."""
        if not len(self._values):
            return {}
        code = pynvml.nvmlLib.nvmlDeviceGetFieldValues(
            self._handle, len(self._values), ctypes.byref(self._values)
        )
        if query(raise_on_error, code) is None:
            return {}
        values = {}
        now_us = now_ns // 1000
        for field in self._values:
            member = _MEMBER.get(field.valueType)
            if field.nvmlReturn == pynvml.NVML_SUCCESS and member is not None:
                t_us = field.timestamp
                t_ns = t_us * 1000 if abs(t_us - now_us) <= _MAX_OFFSET_US else now_ns
                value = valid(getattr(field.value, member))
                if value is not None:
                    values[field.fieldId] = FieldValue(float(value), t_ns)
        return values
