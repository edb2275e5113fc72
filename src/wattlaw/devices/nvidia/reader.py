"""Reads one GPU: its features at the start, and each value at its own period."""

import time
from collections.abc import Callable
from typing import Any, Self

import pynvml

from wattlaw.devices.meter import Device, Facts, Sample
from wattlaw.devices.nvidia.driver import (
    GpuLost,
    NvidiaGpu,
    decode,
    describe,
    query,
    query_optional,
    scaled,
    valid,
)
from wattlaw.devices.nvidia.readings import (
    AVERAGE,
    ENERGY,
    FINE_S,
    FINE_UTIL_S,
    INSTANT,
    THROTTLED,
    Fields,
    FieldValue,
    PeriodMeans,
    SampleBuffer,
)

_SCOPES = {0: "gpu", 1: "module", 2: "memory"}
#: A little under a second, because a reading once a second may come a little early.
_SECOND_NS = 950_000_000
#: The period of values that change slowly.
_SLOW_NS = 4_950_000_000
_OVERDUE_NS = 500_000_000
#: After so many readings without a new sample, a buffer is not used any more.
_MAX_EMPTY_READS = 5
#: The greatest values that a GPU can have; greater values count as missing.
_MAX_PERCENT, _MAX_MHZ, _MAX_C, _MAX_REASONS = 100, 20_000, 200, 2**32
_GPM_METRICS = {
    "sm_occupancy": pynvml.NVML_GPM_METRIC_SM_OCCUPANCY,
    "tensor_util": pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
    "dram_util": pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
}
#: A share of a short time can be a little above 100 %.
_MAX_GPM_PERCENT = 110.0
#: After so many failures in a row a GPU is not read any more.
_MAX_FAILURES = 10


class Gpm:
    """GPU performance monitoring (Hopper and newer): activity between two readings."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._samples = [pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()]
        self._request = pynvml.c_nvmlGpmMetricsGet_t()
        self._request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        self._request.numMetrics = len(_GPM_METRICS)
        for place, metric in enumerate(_GPM_METRICS.values()):
            self._request.metrics[place].metricId = metric
        self._count = 0

    @classmethod
    def open(cls, handle: Any) -> Self | None:
        """Return the metrics of a GPU, None if it does not support them."""
        support = query(pynvml.nvmlGpmQueryDeviceSupport, handle)
        return cls(handle) if support is not None and support.isSupportedDevice else None

    def read(self) -> dict[str, float]:
        """Return the means since the previous reading, as shares; nothing the first time."""
        new = self._samples[self._count % 2]
        if query(pynvml.nvmlGpmSampleGet, self._handle, new) is None:
            return {}
        self._count += 1
        if self._count < 2:
            return {}
        self._request.sample1, self._request.sample2 = self._samples[self._count % 2], new
        if query(pynvml.nvmlGpmMetricsGet, self._request) is None:
            return {}
        return {
            name: metric.value * 1e-2
            for name, metric in zip(_GPM_METRICS, self._request.metrics, strict=False)
            if metric.nvmlReturn == pynvml.NVML_SUCCESS
            and valid(metric.value, _MAX_GPM_PERCENT) is not None
        }

    def close(self) -> None:
        """Free the memory that the driver allocated."""
        while self._samples:
            query(pynvml.nvmlGpmSampleFree, self._samples.pop())


class GpuReader:
    """Reads one GPU of a ``NvidiaMeter``."""

    def __init__(self, gpu: NvidiaGpu, period_s: float) -> None:
        self.gpu = gpu
        self.problem: str | None = None
        self._handle = gpu.handle
        self._failures = 0
        self._second_ns = self._slow_ns = 0
        self._last_counter: tuple[int, float] | None = None
        self._reported_ns = 0
        self._means = PeriodMeans(period_s)
        self._empty_reads: dict[str, int] = {}
        #: Problems that did not end the reading.
        self.notes: list[str] = []
        self._probe(period_s)

    def _probe(self, period_s: float) -> None:
        handle = self._handle
        fields = Fields(handle, (ENERGY, INSTANT, AVERAGE, THROTTLED))
        supported = query_optional(fields.read, time.time_ns()) or {}
        self._energy_by = "field" if ENERGY in supported else None
        if self._energy_by is None and _answers(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle):
            self._energy_by = "call"
        self._throttled_by_field = THROTTLED in supported
        self._buffers: dict[str, SampleBuffer] = {}
        for column, kind, scale, finest_s in (
            ("power_w", pynvml.NVML_TOTAL_POWER_SAMPLES, 1e-3, max(period_s, FINE_S)),
            ("sm_util", pynvml.NVML_GPU_UTILIZATION_SAMPLES, 1e-2, FINE_UTIL_S),
            ("mem_util", pynvml.NVML_MEMORY_UTILIZATION_SAMPLES, 1e-2, FINE_UTIL_S),
        ):
            buffer = query_optional(SampleBuffer.open, handle, kind, scale, finest_s)
            if buffer is not None:
                self._buffers[column] = buffer
        self._supported_fields = frozenset(supported)
        sources = {"instant": INSTANT, "average": AVERAGE}
        self._polled_power = next((name for name in sources if sources[name] in supported), None)
        if self._polled_power is None and _answers(pynvml.nvmlDeviceGetPowerUsage, handle):
            self._polled_power = "usage"
        self._counter = Fields(handle, [ENERGY])
        self._choose_power()
        self._gpm = query_optional(Gpm.open, handle)
        self._facts = self._probe_facts()
        self.refresh_s: float | None = None

    def _choose_power(self) -> None:
        """Choose the source of power, and with it the fields to read at every sample."""
        self._power_by = "buffer" if "power_w" in self._buffers else self._polled_power
        is_fast = {
            ENERGY: self._energy_by == "field",
            INSTANT: self._power_by == "instant",
            AVERAGE: self._power_by == "average",
        }
        fast = [field for field, wanted in is_fast.items() if wanted]
        more = [f for f in (AVERAGE, THROTTLED) if f in self._supported_fields and f not in fast]
        self._fast_fields = Fields(self._handle, fast)
        self._second_fields = Fields(self._handle, [*fast, *more])

    @property
    def is_polled(self) -> bool:
        """Return whether more than the counter must be read at every sample."""
        return not {"power_w", "sm_util", "mem_util"} <= {*self._buffers} or not self._power_by

    @property
    def has_counter(self) -> bool:
        """Return whether the GPU has an energy counter."""
        return self._energy_by is not None

    def device(self) -> Device:
        """Return the GPU with its features, as the run records them."""
        facts = {**self._facts, "counter_refresh_s": self.refresh_s}
        return Device(self.gpu.uuid, "gpu", self.gpu.name, facts)

    def _probe_facts(self) -> Facts:
        now_ns = time.time_ns()
        scopes = [
            name
            for scope, name in _SCOPES.items()
            if query_optional(Fields(self._handle, ((INSTANT, scope),)).read, now_ns)
        ]
        power_buffer = self._buffers.get("power_w")
        limits_mw = query_optional(
            pynvml.nvmlDeviceGetPowerManagementLimitConstraints, self._handle
        )
        return {
            "energy_counter": self._energy_by,
            "power": self._power_by,
            "power_buffer_spacing_s": power_buffer.spacing_s if power_buffer else None,
            "power_buffer_span_s": power_buffer.span_s if power_buffer else None,
            "power_scopes": ",".join(scopes) or None,
            "buffers": ",".join(self._buffers) or None,
            "gpm": self._gpm is not None,
            "default_power_limit_w": self._watts(pynvml.nvmlDeviceGetPowerManagementDefaultLimit),
            "max_power_limit_w": scaled(valid(limits_mw[1]), 1e-3) if limits_mw else None,
            "power_limit_w": self._watts(pynvml.nvmlDeviceGetEnforcedPowerLimit),
            "is_shared": self.gpu.is_shared,
        }

    def read(self, now_ns: int, *, last: bool) -> list[Sample]:
        """Return the new samples; none if the GPU fails, and none ever again once it is lost."""
        if self.problem is not None:
            return []
        try:
            samples = self._read(now_ns, last=last)
        except GpuLost as error:
            self.problem = f"{self.gpu.uuid}: lost: {error}"
            return []
        except pynvml.NVMLError as error:
            self._failures += 1
            if self._failures >= _MAX_FAILURES:
                self.problem = f"{self.gpu.uuid}: given up: {describe(error)}"
            return []
        self._failures = 0
        return samples

    def close(self) -> None:
        """Free the memory that the driver allocated for us."""
        if self._gpm is not None:
            self._gpm.close()

    def energy(self) -> FieldValue | None:
        """Return the counter in mJ with its time."""
        now_ns = time.time_ns()
        if self._energy_by == "field":
            return self._counter.read(now_ns).get(ENERGY)
        if self._energy_by == "call":
            value = valid(query(pynvml.nvmlDeviceGetTotalEnergyConsumption, self._handle))
            return None if value is None else FieldValue(value, now_ns)
        return None

    def _read(self, now_ns: int, *, last: bool) -> list[Sample]:
        is_second = last or now_ns - self._second_ns >= _SECOND_NS
        fields = (self._second_fields if is_second else self._fast_fields).read(now_ns)
        counter = self._new_counter(fields.get(ENERGY), now_ns)
        values: dict[str, Any] = {}
        if "power_w" not in self._buffers:
            values["power_w"] = self._power(fields)
        if not {"sm_util", "mem_util"} <= {*self._buffers}:
            rates = query_optional(pynvml.nvmlDeviceGetUtilizationRates, self._handle)
            if rates is not None:
                values["sm_util"] = scaled(valid(rates.gpu, _MAX_PERCENT), 1e-2)
                values["mem_util"] = scaled(valid(rates.memory, _MAX_PERCENT), 1e-2)
        if is_second or self.is_polled:
            values["sm_clock_mhz"] = self._clock(pynvml.NVML_CLOCK_SM)
        samples = []
        if is_second:
            self._second_ns = now_ns
            self._read_buffers()
            samples += [self._sample(*mean) for mean in self._means.take(flush=last)]
            values |= self._read_each_second(fields)
        if last or now_ns - self._slow_ns >= _SLOW_NS:
            self._slow_ns = now_ns
            values |= self._read_slow()
        if counter is not None:
            samples.append(self._sample(counter[0], {"energy_j": counter[1]}))
        if any(value is not None for value in values.values()):
            samples.append(self._sample(now_ns, values))
        return samples

    def _read_buffers(self) -> None:
        """Read the driver's buffers; a buffer without new samples is replaced by polling."""
        for column, buffer in list(self._buffers.items()):
            series = query_optional(buffer.new) or ((), ())
            self._means.add(column, series, buffer.scale)
            self._empty_reads[column] = 0 if series[0] else self._empty_reads.get(column, 0) + 1
            if self._empty_reads[column] >= _MAX_EMPTY_READS:
                del self._buffers[column]
                self.notes.append(
                    f"{self.gpu.uuid}: the driver's buffer of {column} has no new samples"
                )
                self._choose_power()

    def _new_counter(self, field: FieldValue | None, now_ns: int) -> tuple[int, float] | None:
        """Return the counter as (ns since 1970, J) if it is a new reading."""
        value = self.energy() if self._energy_by == "call" else field
        if value is None:
            return None
        counter = (value.t_ns, value.value * 1e-3)
        if counter == self._last_counter:
            # Reported again only when a change is overdue, which shows a counter that stalls.
            overdue_ns = max(_OVERDUE_NS, round(3e9 * (self.refresh_s or 0)))
            if now_ns - counter[0] < overdue_ns or now_ns - self._reported_ns < overdue_ns:
                return None
            self._reported_ns = now_ns
            return now_ns, counter[1]
        if self._last_counter is not None and counter[0] <= self._last_counter[0]:
            counter = (now_ns, counter[1])  # a new value at no new time: the driver's clock is off
        self._last_counter, self._reported_ns = counter, now_ns
        return counter

    def _power(self, fields: dict[int, FieldValue]) -> float | None:
        if self._power_by == "usage":
            return scaled(valid(query(pynvml.nvmlDeviceGetPowerUsage, self._handle)), 1e-3)
        return _value(fields.get(INSTANT if self._power_by == "instant" else AVERAGE), 1e-3)

    def _read_each_second(self, fields: dict[int, FieldValue]) -> dict[str, Any]:
        throttled_s = _value(fields.get(THROTTLED), 1e-9)
        if not self._throttled_by_field:
            policy = pynvml.NVML_PERF_POLICY_POWER
            status = query_optional(pynvml.nvmlDeviceGetViolationStatus, self._handle, policy)
            throttled_s = None if status is None else scaled(valid(status.violationTime), 1e-9)
        values: dict[str, Any] = {
            "power_average_w": _value(fields.get(AVERAGE), 1e-3),
            "power_throttle_s": throttled_s,
        }
        if self._gpm is not None:
            values |= query_optional(self._gpm.read) or {}
        return values

    def _read_slow(self) -> dict[str, Any]:
        """Return the values that change slowly, and check that it is still the same GPU."""
        handle = self._handle
        uuid = query_optional(pynvml.nvmlDeviceGetUUID, handle)
        if uuid is not None and decode(uuid) != self.gpu.uuid:
            raise GpuLost(f"it was replaced by another board, {decode(uuid)!a}")
        memory = query_optional(pynvml.nvmlDeviceGetMemoryInfo, handle)
        celsius = query_optional(
            pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU
        )
        return {
            "power_limit_w": self._watts(pynvml.nvmlDeviceGetEnforcedPowerLimit),
            "mem_used_bytes": None if memory is None else valid(memory.used, memory.total),
            "mem_clock_mhz": self._clock(pynvml.NVML_CLOCK_MEM),
            "temperature_c": valid(celsius, _MAX_C),
            "throttle": self._throttle_reasons(),
        }

    def _throttle_reasons(self) -> int | None:
        """Return the bit mask of what limits the clocks, also from drivers before 535."""
        new, old = (
            pynvml.nvmlDeviceGetCurrentClocksEventReasons,
            pynvml.nvmlDeviceGetCurrentClocksThrottleReasons,
        )
        reasons = query_optional(new, self._handle)
        reasons = query_optional(old, self._handle) if reasons is None else reasons
        return None if valid(reasons, _MAX_REASONS) is None else reasons

    def _watts(self, call: Callable[[Any], int]) -> float | None:
        return scaled(valid(query_optional(call, self._handle)), 1e-3)

    def _clock(self, which: int) -> float | None:
        return valid(query_optional(pynvml.nvmlDeviceGetClockInfo, self._handle, which), _MAX_MHZ)

    def _sample(self, t_ns: int, values: dict[str, Any]) -> Sample:
        return Sample(self.gpu.uuid, "gpu", t_ns, power_source="measured", **values)


def _value(field: FieldValue | None, factor: float) -> float | None:
    return None if field is None else field.value * factor


def _answers(call: Callable[[Any], int], handle: Any) -> bool:
    return query_optional(call, handle) is not None
