"""Field values: several readings of a board in one call of the driver, each with its time."""

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import pynvml

from wattlaw.devices.nvidia.driver import known, query, raise_on_error

ENERGY = pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION
AVERAGE = pynvml.NVML_FI_DEV_POWER_AVERAGE
INSTANT = pynvml.NVML_FI_DEV_POWER_INSTANT
THROTTLED = pynvml.NVML_FI_DEV_PERF_POLICY_POWER
#: A driver's timestamp that is further than this from ours is not on the wall clock.
_OFF_US = 2_000_000

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
    """A value in the driver's unit (mJ, mW, ns), and when it was true in ns since 1970."""

    value: float
    t_ns: int


class Fields:
    """A fixed set of fields of one board.

    Called straight, with the same memory each time: nvidia-ml-py builds it anew with every call.
    """

    def __init__(self, handle: Any, wanted: Sequence[int | tuple[int, int]]) -> None:
        self._handle = handle
        self._values = (pynvml.c_nvmlFieldValue_t * len(wanted))()
        for place, field in enumerate(wanted):
            number, scope = field if isinstance(field, tuple) else (field, 0)
            self._values[place].fieldId, self._values[place].scopeId = number, scope

    def read(self, now_ns: int) -> dict[int, FieldValue]:
        """Return those that the board gives, by number of the field; our time where it has none."""
        if not len(self._values):
            return {}
        code = pynvml.nvmlLib.nvmlDeviceGetFieldValues(
            self._handle, len(self._values), ctypes.byref(self._values)
        )
        if query(raise_on_error, code) is None:
            return {}
        found = {}
        now_us = now_ns // 1000
        for one in self._values:
            member = _MEMBER.get(one.valueType)
            if one.nvmlReturn == pynvml.NVML_SUCCESS and member is not None:
                t_us = one.timestamp
                t_ns = t_us * 1000 if abs(t_us - now_us) <= _OFF_US else now_ns
                value = known(getattr(one.value, member))
                if value is not None:
                    found[one.fieldId] = FieldValue(float(value), t_ns)
        return found
