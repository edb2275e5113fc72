"""Direct calls of the driver: field values, and its buffers of timestamped samples.

A buffer is read every few seconds, at full resolution.
"""

import bisect
import ctypes
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Self

import pynvml

from wattlaw.measure.devices.nvidia.nvml import query, raise_on_error, valid

#: The number of a field, with its scope if that is not the GPU.
Field = int | tuple[int, int]
ENERGY = pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION
AVERAGE = pynvml.NVML_FI_DEV_POWER_AVERAGE
INSTANT = pynvml.NVML_FI_DEV_POWER_INSTANT
THROTTLED = pynvml.NVML_FI_DEV_PERF_POLICY_POWER
#: Power by ``nvmlDeviceGetPowerUsage``, which is no field.
USAGE = -1
#: Power of the module: processor, GPU and memories of a Grace Hopper board.
MODULE, MODULE_AVERAGE = (INSTANT, 1), (AVERAGE, 1)
#: A timestamp of the driver that differs more from our time is not on the wall clock.
_MAX_FIELD_OFFSET_US, _MAX_BUFFER_OFFSET_US = 2_000_000, 5_000_000

#: Which member of the driver's union holds a value of each type, and the layout of a sample with
#: it: a time of 8 bytes and the union of 8.
_TYPES = {
    pynvml.NVML_VALUE_TYPE_DOUBLE: ("dVal", struct.Struct("=Qd")),
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: ("uiVal", struct.Struct("=QI4x")),
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: ("ulVal", struct.Struct("=QQ")),
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: ("ullVal", struct.Struct("=QQ")),
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: ("sllVal", struct.Struct("=Qq")),
    pynvml.NVML_VALUE_TYPE_SIGNED_INT: ("siVal", struct.Struct("=Qi4x")),
}
_SAMPLE_BYTES = 16
#: More samples than any driver keeps of a kind.
_MAX_SAMPLES = 1024
#: A buffer that spans less is not used. It would have to be read almost as often as power itself.
_MIN_SPAN_S = 2.0

#: Times in microseconds since 1970, ascending, and values.
Series = tuple[tuple[int, ...], tuple[float, ...]]


class FieldValue(NamedTuple):
    """A value in the driver's unit (mJ, mW, ns), and its time in ns since 1970."""

    value: float
    t_ns: int  # by the driver, or of the reading


Reading = dict[Field, FieldValue]


class Fields:
    """A fixed set of fields of one GPU, and calls that stand in for those that it lacks. It calls
    the driver's library directly and reuses its memory; nvidia-ml-py allocates at every call."""

    def __init__(
        self,
        handle: Any,
        wanted: Sequence[Field],
        calls: Mapping[Field, Callable[[Any], int]] | None = None,
    ) -> None:
        self._handle, self._wanted, self._calls = handle, tuple(wanted), calls or {}
        self._values = (pynvml.c_nvmlFieldValue_t * len(wanted))()
        for value, field in zip(self._values, wanted, strict=True):
            value.fieldId, value.scopeId = field if isinstance(field, tuple) else (field, 0)

    def read(self, now_ns: int) -> Reading:
        reading: Reading = {}
        if self._wanted:
            count, values = len(self._wanted), self._values
            code = pynvml.nvmlLib.nvmlDeviceGetFieldValues(self._handle, count, values)
            if not code or query(raise_on_error, code) is not None:
                for field, stored in zip(self._wanted, values, strict=True):
                    if (value := _field_value(stored, now_ns)) is not None:
                        reading[field] = value
        for field, call in self._calls.items():
            if (number := valid(query(call, self._handle))) is not None:
                reading[field] = FieldValue(float(number), now_ns)
        return reading


def _field_value(field: Any, now_ns: int) -> FieldValue | None:
    if field.nvmlReturn != pynvml.NVML_SUCCESS or field.valueType not in _TYPES:
        return None
    value, t_us = valid(getattr(field.value, _TYPES[field.valueType][0])), field.timestamp
    if value is None:
        return None
    is_timed = abs(t_us - now_ns // 1000) <= _MAX_FIELD_OFFSET_US
    return FieldValue(float(value), t_us * 1000 if is_timed else now_ns)


class SampleBuffer:
    def __init__(self, handle: Any, kind: int, scale: float) -> None:
        self._handle, self._kind, self.scale = handle, kind, scale
        is_power = kind == pynvml.NVML_TOTAL_POWER_SAMPLES
        self._max_value = 2**31 - 2 if is_power else 100  # mW below any sentinel, or a percentage
        self._seen_us = 0
        self._seen, self._type, self._count = ctypes.c_ulonglong(), ctypes.c_uint(), ctypes.c_uint()
        self._memory = ctypes.create_string_buffer(_MAX_SAMPLES * _SAMPLE_BYTES)
        self.spacing_s: float | None = None
        self.span_s = 0.0

    @classmethod
    def open(cls, handle: Any, kind: int, scale: float, max_spacing_s: float) -> Self | None:
        buffer = cls(handle, kind, scale)
        times_us, values = buffer.new()
        if len(times_us) < 3 or (kind == pynvml.NVML_TOTAL_POWER_SAMPLES and not any(values)):
            return None  # no GPU that is on draws nothing
        steps_us = sorted(later - t_us for t_us, later in pairwise(times_us))
        buffer.spacing_s = steps_us[len(steps_us) // 2] * 1e-6
        buffer.span_s = (times_us[-1] - times_us[0]) * 1e-6
        is_current = abs(time.time_ns() // 1000 - times_us[-1]) < _MAX_BUFFER_OFFSET_US
        is_fine = 0 < buffer.spacing_s <= max_spacing_s
        return buffer if is_current and is_fine and buffer.span_s >= _MIN_SPAN_S else None

    def new(self) -> Series:
        """Return every sample since the previous call. The driver's library is called directly,
        with memory for the full buffer: nvidia-ml-py calls it twice and creates an object per
        sample."""
        self._count.value, self._seen.value = _MAX_SAMPLES, self._seen_us
        code = pynvml.nvmlLib.nvmlDeviceGetSamples(
            self._handle, self._kind, self._seen, ctypes.byref(self._type),
            ctypes.byref(self._count), self._memory,
        )  # fmt: skip
        _, layout = _TYPES.get(self._type.value, (None, None))
        if query(raise_on_error, code) is None or layout is None or not self._count.value:
            return (), ()
        end = self._count.value * layout.size
        times_us, values = zip(*layout.iter_unpack(memoryview(self._memory)[:end]), strict=True)
        latest_us = time.time_ns() // 1000 + _MAX_BUFFER_OFFSET_US
        is_in_range = min(values) >= 0 and max(values) <= self._max_value
        if not is_in_range or max(times_us) > latest_us or [*times_us] != sorted(times_us):
            newest_us, kept = 0, []
            for t_us, value in zip(times_us, values, strict=True):
                if newest_us < t_us <= latest_us:
                    newest_us = t_us
                    if valid(value, self._max_value) is not None:
                        kept.append((t_us, value))
            times_us, values = tuple(t_us for t_us, _ in kept), tuple(value for _, value in kept)
        new = bisect.bisect_right(times_us, self._seen_us)
        self._seen_us = max((self._seen_us, *times_us[-1:]))
        return times_us[new:], values[new:]


class PeriodMeans:
    """Resamples several buffers to one period. A mean keeps the energy of a period, which picking a
    single sample would not; its time is the mean of the times of its samples."""

    def __init__(self, period_s: float) -> None:
        self._period_us = max(1, round(period_s * 1e6))
        #: By period number and column: count, sum of times within the period, sum of values.
        self._open: dict[int, dict[str, tuple[int, int, float]]] = {}

    def add(self, column: str, series: Series, scale: float = 1.0) -> None:
        times_us, values = series
        begin = 0
        while begin < len(times_us):
            number = times_us[begin] // self._period_us
            end = bisect.bisect_left(times_us, (number + 1) * self._period_us, begin)
            since_us = sum(times_us[begin:end]) - (end - begin) * number * self._period_us
            columns = self._open.setdefault(number, {})
            count, sum_us, total = columns.get(column, (0, 0, 0.0))
            total += sum(values[begin:end]) * scale
            columns[column] = (count + end - begin, sum_us + since_us, total)
            begin = end

    def take(self, *, flush: bool = False) -> list[tuple[int, dict[str, float]]]:
        newest, means = max(self._open, default=0), []
        for number in sorted(number for number in self._open if flush or number < newest):
            columns = self._open.pop(number)
            count, sum_us, _ = columns.get("power_w") or next(iter(columns.values()))
            t_ns = number * self._period_us * 1000 + round(1000 * sum_us / count)
            means.append((t_ns, {name: sums[2] / sums[0] for name, sums in columns.items()}))
        return means
