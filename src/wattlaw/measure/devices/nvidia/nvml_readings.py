"""Direct calls of the driver: several field values at once, and its buffers of timestamped samples.

One call every few seconds gives a buffer's samples at full resolution.
"""

import bisect
import ctypes
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import pynvml

from wattlaw.measure.devices.nvidia.nvml import query, raise_on_error, valid

ENERGY = pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION
AVERAGE = pynvml.NVML_FI_DEV_POWER_AVERAGE
INSTANT = pynvml.NVML_FI_DEV_POWER_INSTANT
THROTTLED = pynvml.NVML_FI_DEV_PERF_POLICY_POWER
#: Power by ``nvmlDeviceGetPowerUsage``, which is no field.
USAGE = -1
#: Power of the module: processor, GPU and memories of a Grace Hopper board.
MODULE, MODULE_AVERAGE = (INSTANT, 1), (AVERAGE, 1)
#: A timestamp of the driver that differs more from our time is not on the wall clock.
_MAX_FIELD_OFFSET_US = 2_000_000

#: Which member of the driver's union holds a value of each type.
_MEMBER = {
    pynvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
}

#: Times in microseconds since 1970, ascending, and values.
Series = tuple[tuple[int, ...], tuple[float, ...]]

#: Power comes from a buffer whose spacing is at most the requested sample period, or this.
FINE_S = 0.1
#: Utilisation changes slowly; the driver itself averages it over 1/6 s to 1 s.
FINE_UTIL_S = 1.0
#: A clock that differs by more is not the wall clock.
_MAX_OFFSET_US = 5_000_000
#: A buffer that spans less is not used. It would have to be read almost as often as power itself.
_MIN_SPAN_S = 2.0
#: More samples than any driver keeps of a kind.
_MAX_SAMPLES = 1024


#: The number of a field, with its scope if that is not the GPU.
Field = int | tuple[int, int]


class FieldValue(NamedTuple):
    """A value in the driver's unit (mJ, mW, ns), and its time in ns since 1970."""

    value: float
    t_ns: int
    is_timed: bool = False  # by the driver; else it is the time of the reading


Reading = dict[Field, FieldValue]


class Fields:
    """A fixed set of fields of one GPU, and its readings that were not taken yet.

    It calls the driver's library directly and reuses its memory, which nvidia-ml-py allocates at
    every call. A reading is stored as the driver wrote it, because most of the cost of a reading
    is that of its first instructions after a sleep.

    Parameters
    ----------
    handle
        The driver's handle of the GPU.
    wanted
        The fields.
    calls
        Functions of the driver that stand in for fields which it does not have.
    capacity
        The most readings before they are taken.
    """

    def __init__(
        self,
        handle: Any,
        wanted: Sequence[Field],
        calls: Mapping[Field, Callable[[Any], int]] | None = None,
        capacity: int = 1,
    ) -> None:
        self._handle, self._wanted, self._calls = handle, tuple(wanted), calls or {}
        self._values = (pynvml.c_nvmlFieldValue_t * (len(wanted) * capacity))()
        for place, value in enumerate(self._values):
            field = wanted[place % len(wanted)]
            value.fieldId, value.scopeId = field if isinstance(field, tuple) else (field, 0)
        size = len(wanted) * ctypes.sizeof(pynvml.c_nvmlFieldValue_t)
        self._slots = [ctypes.byref(self._values, n * size) for n in range(capacity)]
        self._readings: list[tuple[int, bool, Reading]] = []

    @property
    def is_full(self) -> bool:
        return len(self._readings) == len(self._slots)

    def poll(self, now_ns: int) -> None:
        """Read the fields, and keep them for ``take``."""
        answers, calls = False, {}
        if self._wanted:
            slot = self._slots[len(self._readings)]
            code = pynvml.nvmlLib.nvmlDeviceGetFieldValues(self._handle, len(self._wanted), slot)
            answers = not code or query(raise_on_error, code) is not None
        for field, call in self._calls.items():
            value = valid(query(call, self._handle))
            if value is not None:
                calls[field] = FieldValue(float(value), now_ns)
        self._readings.append((now_ns, answers, calls))

    def take(self) -> list[tuple[int, Reading]]:
        taken = []
        for slot, (now_ns, answers, values) in enumerate(self._readings):
            if answers:
                begin = slot * len(self._wanted)
                stored = self._values[begin : begin + len(self._wanted)]
                pairs = zip(self._wanted, stored, strict=True)
                values |= {f: v for f, stored in pairs if (v := _field_value(stored, now_ns))}
            taken.append((now_ns, values))
        self._readings.clear()
        return taken

    def read(self, now_ns: int) -> Reading:
        """Return the available values now."""
        self.poll(now_ns)
        return self.take()[-1][1]


def _field_value(field: Any, now_ns: int) -> FieldValue | None:
    """Return a value of the driver, with our time if the driver gives none."""
    member = _MEMBER.get(field.valueType)
    if field.nvmlReturn != pynvml.NVML_SUCCESS or member is None:
        return None
    value, t_us = valid(getattr(field.value, member)), field.timestamp
    if value is None:
        return None
    is_timed = abs(t_us - now_ns // 1000) <= _MAX_FIELD_OFFSET_US
    return FieldValue(float(value), t_us * 1000 if is_timed else now_ns, is_timed)


class SampleBuffer:
    """One kind of samples of one GPU."""

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
    def open(
        cls, handle: Any, kind: int, scale: float, max_spacing_s: float
    ) -> "SampleBuffer | None":
        """Return a buffer if it is fine enough, long enough and on the wall clock, else None."""
        buffer = cls(handle, kind, scale)
        times_us, values = buffer.new()
        if len(times_us) < 3 or (kind == pynvml.NVML_TOTAL_POWER_SAMPLES and not any(values)):
            return None  # no GPU that is on draws nothing
        steps_us = sorted(later - t_us for t_us, later in pairwise(times_us))
        buffer.spacing_s = steps_us[len(steps_us) // 2] * 1e-6
        buffer.span_s = (times_us[-1] - times_us[0]) * 1e-6
        is_current = abs(time.time_ns() // 1000 - times_us[-1]) < _MAX_OFFSET_US
        fine = 0 < buffer.spacing_s <= max_spacing_s
        return buffer if is_current and fine and buffer.span_s >= _MIN_SPAN_S else None

    def new(self) -> Series:
        """Return every sample since the previous call: times in us since 1970, and values.

        It omits a sample that has no value or is no newer than the one before it. It calls the
        driver's library directly, with memory for the full buffer: nvidia-ml-py would call it
        twice and create an object per sample.
        """
        self._count.value = _MAX_SAMPLES
        self._seen.value = self._seen_us
        code = pynvml.nvmlLib.nvmlDeviceGetSamples(
            self._handle,
            self._kind,
            self._seen,
            ctypes.byref(self._type),
            ctypes.byref(self._count),
            self._memory,
        )
        layout = _LAYOUTS.get(self._type.value)
        if query(raise_on_error, code) is None or layout is None or not self._count.value:
            return (), ()
        end = self._count.value * layout.size
        times_us, values = zip(*layout.iter_unpack(memoryview(self._memory)[:end]), strict=True)
        latest_us = time.time_ns() // 1000 + _MAX_OFFSET_US
        in_range = (
            min(values) >= 0 and max(values) <= self._max_value and max(times_us) <= latest_us
        )
        if not in_range or [*times_us] != sorted(times_us):
            times_us, values = self._valid_samples(times_us, values, latest_us)
        new = bisect.bisect_right(times_us, self._seen_us)
        self._seen_us = max(self._seen_us, times_us[-1]) if times_us else self._seen_us
        return times_us[new:], values[new:]

    def _valid_samples(
        self, times_us: Sequence[int], values: Sequence[float], latest_us: int
    ) -> Series:
        """Return the samples that have a value and are later than all before them."""
        newest_us, kept = 0, []
        for t_us, value in zip(times_us, values, strict=True):
            if newest_us < t_us <= latest_us:
                newest_us = t_us
                if valid(value, self._max_value) is not None:
                    kept.append((t_us, value))
        return tuple(t_us for t_us, _ in kept), tuple(value for _, value in kept)


#: The driver's sample: a time of 8 bytes, and a union of 8, by the type of its value.
_LAYOUTS = {
    pynvml.NVML_VALUE_TYPE_DOUBLE: struct.Struct("=Qd"),
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: struct.Struct("=QI4x"),
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: struct.Struct("=QQ"),
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: struct.Struct("=QQ"),
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: struct.Struct("=Qq"),
    pynvml.NVML_VALUE_TYPE_SIGNED_INT: struct.Struct("=Qi4x"),
}
_SAMPLE_BYTES = 16


class PeriodMeans:
    """Resamples several buffers to one period: the mean of each column in each period.

    A mean keeps the energy of a period, which picking a single sample would not. Its time is the
    mean of the times of its samples.
    """

    def __init__(self, period_s: float) -> None:
        self._period_us = max(1, round(period_s * 1e6))
        #: By period number and column: count, sum of times within the period, sum of values.
        self._open: dict[int, dict[str, tuple[int, int, float]]] = {}

    def add(self, column: str, series: Series, scale: float = 1.0) -> None:
        """Add new samples of a column."""
        times_us, values = series
        begin = 0
        while begin < len(times_us):
            number = times_us[begin] // self._period_us
            end = bisect.bisect_left(times_us, (number + 1) * self._period_us, begin)
            count, base_us = end - begin, number * self._period_us
            before = self._open.setdefault(number, {}).get(column, (0, 0, 0.0))
            self._open[number][column] = (
                before[0] + count,
                before[1] + sum(times_us[begin:end]) - count * base_us,
                before[2] + sum(values[begin:end]) * scale,
            )
            begin = end

    def take(self, *, flush: bool = False) -> list[tuple[int, dict[str, float]]]:
        newest, means = max(self._open, default=0), []
        for number in sorted(number for number in self._open if flush or number < newest):
            columns = self._open.pop(number)
            count, times_us, _ = columns.get("power_w") or next(iter(columns.values()))
            t_ns = number * self._period_us * 1000 + round(1000 * times_us / count)
            means.append((t_ns, {name: sums[2] / sums[0] for name, sums in columns.items()}))
        return means
