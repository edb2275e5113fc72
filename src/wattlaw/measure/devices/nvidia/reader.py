"""Reads one GPU: its features at the start, and each value at its own period.

On a Grace Hopper board the energy counter and the driver's buffer of power may be those of the
module, with the processor and both memories, so neither is used there.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pynvml

from wattlaw.measure.devices.meter import Device, Sample
from wattlaw.measure.devices.nvidia.nvml import (
    GpuLost,
    NvidiaGpu,
    describe,
    query_optional,
    scaled,
    valid,
    watts,
)
from wattlaw.measure.devices.nvidia.nvml_readings import (
    AVERAGE,
    ENERGY,
    INSTANT,
    MODULE,
    MODULE_AVERAGE,
    THROTTLED,
    USAGE,
    Field,
    Fields,
    FieldValue,
    PeriodMeans,
    Reading,
    SampleBuffer,
)

_POWER_FIELDS: Mapping[str, Field] = {"instant": INSTANT, "average": AVERAGE, "usage": USAGE}
#: Power comes from a buffer whose spacing is at most the requested sample period, or this.
#: Utilisation changes slowly; the driver itself averages it over 1/6 s to 1 s.
_FINE_S, _FINE_UTIL_S = 0.1, 1.0
_USES = frozenset({"sm_util", "mem_util"})
#: The longest time between two readings of the driver's buffers.
_MAX_BUFFERED_S = 4.0
#: The share of a buffer's span between two of its readings; the rest is for a late one.
_SPAN_SHARE = 0.85
#: A polled GPU is evaluated once a second, a buffered one after its period, or a little early.
_EARLY = 0.95
#: The period of utilisation, which drivers average over 1/6 s or more, and of slow values.
_USE_NS = 240_000_000
_SLOW_NS, _OVERDUE_NS = 4_950_000_000, 500_000_000
_MAX_EMPTY_READS = 3  # without a new sample; then a buffer is not used any more
#: The processor and memory of a module draw more than this, even idle.
_MIN_REST_MW = 5_000
#: The period in which drivers update power.
_UPDATE_S = 0.1
#: The greatest values that a GPU can have; greater values count as missing.
_MAX_PERCENT, _MAX_MHZ, _MAX_C, _MAX_REASONS = 100, 20_000, 200, 2**32
#: After so many failures in a row, or failures for so long, a GPU is not read any more.
_MAX_FAILURES, _MAX_FAILING_NS = 10, 5 * 10**9

#: Compute capabilities of the GPUs whose power sensor is on for 25 of 100 ms: GA100 and GH100
#: (Yang, Adamek, Armour, "Part-time Power Measurements", arXiv 2312.02741).
_PART_TIME_SENSORS, _PART_TIME_DUTY = frozenset({(8, 0), (9, 0)}), 0.25
_VIRTUALIZATION = {
    pynvml.NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH: "passthrough",
    pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU: "vgpu",
    pynvml.NVML_GPU_VIRTUALIZATION_MODE_HOST_VGPU: "host-vgpu",
    pynvml.NVML_GPU_VIRTUALIZATION_MODE_HOST_VSGA: "host-vsga",
}


class GpuReader:
    """Reads one GPU of a ``NvidiaMeter``."""

    def __init__(self, gpu: NvidiaGpu, period_s: float) -> None:
        self.gpu = gpu
        self.problem: str | None = None
        self.notes: list[str] = []  # problems that did not end the reading
        self._handle, self._period_s = gpu.handle, period_s
        self._failures = 0
        self._failing_ns: int | None = None  # since when
        self._second_ns = self._slow_ns = self._use_ns = 0
        self._means = PeriodMeans(period_s)
        self._empty_reads: dict[str, int] = {}
        #: The time between two changes of the counter; None if it is not known.
        self._refresh_s: float | None = None
        self._last_counter: tuple[int, float] | None = None
        self._reported_ns = 0
        self._find_sources()
        self._facts = _features(gpu, self._capability)

    def _find_sources(self) -> None:
        handle = self._handle
        fields = Fields(handle, (ENERGY, INSTANT, AVERAGE, THROTTLED, MODULE, MODULE_AVERAGE))
        supported = query_optional(fields.read, time.time_ns()) or {}
        self._supported_fields = frozenset(supported)
        self._capability = query_optional(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
        is_on_module = _is_on_module(supported)
        if is_on_module:  # unless its power was updated between the two values
            time.sleep(_UPDATE_S)
            is_on_module = _is_on_module(query_optional(fields.read, time.time_ns()) or supported)
        self._energy_by = "field" if ENERGY in supported else None
        if not self._energy_by and _answers(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle):
            self._energy_by = "call"
        self._buffers: dict[str, SampleBuffer] = {}
        if is_on_module:
            self._energy_by = None
        else:
            finest_s = max(self._period_s, _FINE_S)
            self._open_buffer("power_w", pynvml.NVML_TOTAL_POWER_SAMPLES, 1e-3, finest_s)
        self._open_buffer("sm_util", pynvml.NVML_GPU_UTILIZATION_SAMPLES, 1e-2, _FINE_UTIL_S)
        self._open_buffer("mem_util", pynvml.NVML_MEMORY_UTILIZATION_SAMPLES, 1e-2, _FINE_UTIL_S)
        polled = [name for name in ("instant", "average") if _POWER_FIELDS[name] in supported]
        if not polled and _answers(pynvml.nvmlDeviceGetPowerUsage, handle):
            polled = ["usage"]
        self._polled_power = polled[0] if polled else None
        self._choose_power()

    def _open_buffer(self, column: str, kind: int, scale: float, finest_s: float) -> None:
        buffer = query_optional(SampleBuffer.open, self._handle, kind, scale, finest_s)
        if buffer is not None:
            self._buffers[column] = buffer

    def _choose_power(self) -> None:
        self._power_by = "buffer" if "power_w" in self._buffers else self._polled_power
        self._power_field = power = _POWER_FIELDS.get(self._power_by or "")
        fast: list[Field] = [ENERGY] if self._energy_by == "field" else []
        fast += [] if power in (None, USAGE) else [power]
        more = [f for f in (AVERAGE, THROTTLED) if f in self._supported_fields and f not in fast]
        self._calls: dict[Field, Callable[[Any], int]] = {}
        if self._energy_by == "call":
            self._calls[ENERGY] = pynvml.nvmlDeviceGetTotalEnergyConsumption
        if power == USAGE:
            self._calls[USAGE] = pynvml.nvmlDeviceGetPowerUsage
        self._fast_fields = Fields(self._handle, fast, self._calls)
        self._all_fields = Fields(self._handle, [*fast, *more], self._calls)
        longest_s = _MAX_BUFFERED_S if self._buffers.keys() >= _USES else 1.0
        longest_s = min([longest_s, *(_SPAN_SHARE * b.span_s for b in self._buffers.values())])
        #: The longest time between two readings, in whole seconds, so that meters share wake-ups;
        #: None if the power must be polled.
        self._buffered_s = float(int(longest_s)) if "power_w" in self._buffers else None
        self._due_ns = round(_EARLY * (self._buffered_s or 1.0) * 1e9)

    @property
    def has_counter(self) -> bool:
        return self._energy_by is not None

    def period_s(self, shortest_s: float) -> float:
        """As long as the driver's buffers allow."""
        return max(shortest_s, self._buffered_s or 0.0)

    def device(self) -> Device:
        buffer = self._buffers.get("power_w")
        facts = {
            "energy_counter": self._energy_by,
            "counter_refresh_s": self._refresh_s,
            "power": self._power_by,
            **self._facts,
            "buffers": ",".join(self._buffers) or None,
            "power_buffer_spacing_s": buffer.spacing_s if buffer else None,
            "power_buffer_span_s": buffer.span_s if buffer else None,
        }
        if not (self._power_by or self._energy_by):
            virtual = "in a virtual machine with a vGPU, " * (facts["virtualization"] == "vgpu")
            facts["failed"] = f"{virtual}the driver reports neither power nor energy of this GPU"
        return Device(self.gpu.uuid, "gpu", self.gpu.name, facts)

    def counter(self) -> FieldValue | None:
        return self._fast_fields.read(time.time_ns()).get(ENERGY)

    def time_counter(self, changes: Sequence[FieldValue]) -> None:
        """Derive the refresh period of the counter from its first values."""
        # The first value is not of a refresh, but of the beginning of the search.
        steps = sorted(later.t_ns - value.t_ns for value, later in pairwise(changes[1:]))
        self._refresh_s = steps[len(steps) // 2] * 1e-9 if steps else None

    def read(self, now_ns: int, *, last: bool) -> list[Sample]:
        """About once a second, or with the driver's buffers, all values are read; between that a
        polled GPU has samples of its counter, power and utilisation."""
        is_due = last or now_ns - self._second_ns >= self._due_ns
        if self.problem is not None or not (is_due or self._buffered_s is None):
            return []
        try:
            values = (self._all_fields if is_due else self._fast_fields).read(now_ns)
            self._failures, self._failing_ns = 0, None
            slow = self._read_slow(now_ns, last=last) if is_due else {}
            samples = self._counted(values, now_ns)
            if last or now_ns - self._use_ns >= _USE_NS:
                samples += self._read_use(now_ns)
            if is_due:
                self._second_ns = now_ns
                self._read_buffers()
                samples += [self._sample(*mean) for mean in self._means.take(flush=last)]
                slow |= self._read_each_second(values)
                if any(value is not None for value in slow.values()):
                    samples.append(self._sample(now_ns, slow))
            return samples
        except GpuLost as error:
            self.problem = f"{self.gpu.uuid}: lost: {error}"
        except pynvml.NVMLError as error:
            self._failures += 1
            self._failing_ns = self._failing_ns or now_ns
            is_failing_long = now_ns - self._failing_ns >= _MAX_FAILING_NS
            if self._failures >= _MAX_FAILURES or is_failing_long:
                self.problem = f"{self.gpu.uuid}: no longer read: {describe(error)}"
        return []

    def _counted(self, values: Reading, now_ns: int) -> list[Sample]:
        samples = []
        if (counter := self._new_counter(values.get(ENERGY), now_ns)) is not None:
            samples.append(self._sample(counter[0], {"energy_j": counter[1]}))
        if self._power_field in values:
            power_w = values[self._power_field].value * 1e-3
            samples.append(self._sample(now_ns, {"power_w": power_w}))
        return samples

    def _new_counter(self, value: FieldValue | None, now_ns: int) -> tuple[int, float] | None:
        if value is None:
            return None
        counter = (value.t_ns, value.value * 1e-3)
        if counter == self._last_counter:
            # Reported again only when a change is overdue, which shows a counter that stalls.
            overdue_ns = max(_OVERDUE_NS, round(3e9 * (self._refresh_s or 0)))
            if now_ns - max(counter[0], self._reported_ns) < overdue_ns:
                return None
            self._reported_ns = now_ns
            return now_ns, counter[1]
        if self._last_counter is not None and counter[0] <= self._last_counter[0]:
            counter = (now_ns, counter[1])  # a new value at no new time: the driver's clock is off
        self._last_counter, self._reported_ns = counter, now_ns
        return counter

    def _read_use(self, now_ns: int) -> list[Sample]:
        self._use_ns = now_ns
        if self._buffers.keys() >= _USES:
            return []
        rates = query_optional(pynvml.nvmlDeviceGetUtilizationRates, self._handle)
        if rates is None:
            return []
        shares = {"sm_util": rates.gpu, "mem_util": rates.memory}
        values = {name: scaled(valid(p, _MAX_PERCENT), 1e-2) for name, p in shares.items()}
        return [self._sample(now_ns, values)]

    def _read_buffers(self) -> None:
        for column, buffer in list(self._buffers.items()):
            series = query_optional(buffer.new) or ((), ())
            self._means.add(column, series, buffer.scale)
            self._empty_reads[column] = 0 if series[0] else self._empty_reads.get(column, 0) + 1
            if self._empty_reads[column] >= _MAX_EMPTY_READS:
                del self._buffers[column]
                self.notes.append(
                    f"{self.gpu.uuid}: the driver's buffer of {column} has no new samples; "
                    "the value is polled instead"
                )
                self._choose_power()

    def _read_each_second(self, fields: Reading) -> dict[str, Any]:
        throttled_ns = fields[THROTTLED].value if THROTTLED in fields else None
        if THROTTLED not in self._supported_fields:
            policy = pynvml.NVML_PERF_POLICY_POWER
            status = query_optional(pynvml.nvmlDeviceGetViolationStatus, self._handle, policy)
            throttled_ns = None if status is None else valid(status.violationTime)
        memory = query_optional(pynvml.nvmlDeviceGetMemoryInfo, self._handle)
        average = fields.get(AVERAGE)
        return {
            "mem_used_bytes": None if memory is None else valid(memory.used, memory.total),
            "power_average_w": None if average is None else average.value * 1e-3,
            "power_throttle_s": scaled(throttled_ns, 1e-9),
            "sm_clock_mhz": self._clock(pynvml.NVML_CLOCK_SM),
        }

    def _read_slow(self, now_ns: int, *, last: bool) -> dict[str, Any]:
        if not last and now_ns - self._slow_ns < _SLOW_NS:
            return {}
        self._slow_ns, handle = now_ns, self._handle
        uuid = query_optional(pynvml.nvmlDeviceGetUUID, handle)
        if uuid is not None and uuid != self.gpu.uuid:
            raise GpuLost(f"another board has replaced it, {uuid!a}")
        sensor = pynvml.NVML_TEMPERATURE_GPU
        celsius = query_optional(pynvml.nvmlDeviceGetTemperature, handle, sensor)
        reasons = query_optional(pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
        if reasons is None:  # drivers before 535
            reasons = query_optional(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
        return {
            "power_limit_w": watts(query_optional(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)),
            "mem_clock_mhz": self._clock(pynvml.NVML_CLOCK_MEM),
            "temperature_c": valid(celsius, _MAX_C),
            "throttle": None if valid(reasons, _MAX_REASONS) is None else reasons,
        }

    def _clock(self, which: int) -> float | None:
        return valid(query_optional(pynvml.nvmlDeviceGetClockInfo, self._handle, which), _MAX_MHZ)

    def _sample(self, t_ns: int, values: dict[str, Any]) -> Sample:
        return Sample(self.gpu.uuid, "gpu", t_ns, power_source="measured", **values)


def _features(
    gpu: NvidiaGpu, capability: tuple[int, int] | None
) -> dict[str, str | float | bool | None]:
    handle = gpu.handle
    limits_mw = query_optional(pynvml.nvmlDeviceGetPowerManagementLimitConstraints, handle)
    default_mw = query_optional(pynvml.nvmlDeviceGetPowerManagementDefaultLimit, handle)
    mode = query_optional(pynvml.nvmlDeviceGetVirtualizationMode, handle)
    virtualization = _VIRTUALIZATION.get(mode or 0)
    users = "all MIG instances of the " if gpu.is_shared else ""
    users = "all virtual machines on the " if "vgpu" in str(virtualization) else users
    return {
        "power_duty": _PART_TIME_DUTY if capability in _PART_TIME_SENSORS else None,
        "scope": f"{users}GPU with its memory",
        "default_power_limit_w": watts(default_mw),
        "min_power_limit_w": watts(limits_mw[0]) if limits_mw else None,
        "max_power_limit_w": watts(limits_mw[1]) if limits_mw else None,
        "power_limit_w": watts(query_optional(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)),
        "is_shared": bool(users),
        "virtualization": virtualization,
    }


def _is_on_module(values: Reading) -> bool:
    """Return whether a GPU is part of a module, which draws more than the GPU alone. Boards that
    are no modules may answer with the GPU's own power."""
    for own, module in ((INSTANT, MODULE), (AVERAGE, MODULE_AVERAGE)):
        if module in values and values[module].value:
            own_mw = values[own].value if own in values else 0.0
            return values[module].value - own_mw >= _MIN_REST_MW
    return False


def _answers(call: Callable[[Any], int], handle: Any) -> bool:
    return query_optional(call, handle) is not None
