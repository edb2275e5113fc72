"""Reads one GPU: its features at the start, and each value at its own period.

On a Grace Hopper board it also reads the module, which contains the processor and both memories.
Boards that are no modules may answer with the GPU's own power; that is not read.
"""

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import Any

import pynvml

from wattlaw.measure.devices.meter import Device, Sample
from wattlaw.measure.devices.nvidia.features import (  # fmt: skip
    MODULE_CONTAINS,
    ONE_PER_MODULE,
    features,
    is_mean,
    throttle_reasons,
    watts,
)
from wattlaw.measure.devices.nvidia.gpm import Gpm
from wattlaw.measure.devices.nvidia.nvml import (
    GpuLost,
    NvidiaGpu,
    decode,
    describe,
    query_optional,
    raise_on_error,
    scaled,
    valid,
)
from wattlaw.measure.devices.nvidia.nvml_readings import (
    AVERAGE,
    ENERGY,
    FINE_S,
    FINE_UTIL_S,
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
from wattlaw.store.streams import Kind

_POWER_FIELDS: Mapping[str, Field] = {"instant": INSTANT, "average": AVERAGE, "usage": USAGE}
_USES = frozenset({"sm_util", "mem_util"})
#: The longest time between two readings of the driver's buffers.
_MAX_BUFFERED_S = 4.0
#: The share of a buffer's span between two of its readings; the rest is for a late one.
_SPAN_SHARE = 0.85
#: A polled GPU is evaluated once a second, a buffered one after its period, or a little early.
_EARLY = 0.95
_MAX_READINGS = 128
#: A counter that changes so much more seldom than the requested period sets the period.
_MUCH_SLOWER = 1.5
#: The period of utilisation, which drivers average over 1/6 s or more, and of slow values.
_USE_NS = 240_000_000
_SLOW_NS, _OVERDUE_NS = 4_950_000_000, 500_000_000
_MAX_EMPTY_READS = 3  # without a new sample; then a buffer is not used any more
_MEAN_PERIOD_S = 0.25  # of a power that is a mean over 1 s
#: A module is compared with its GPU this often, this far apart: drivers update power each 0.1 s.
_COMPARISONS, _COMPARISON_NS = 5, 40_000_000
#: The processor and memory of a module draw more than this, even idle.
_MIN_REST_MW = 5_000
#: The greatest values that a GPU can have; greater values count as missing.
_MAX_PERCENT, _MAX_MHZ, _MAX_C = 100, 20_000, 200
#: After so many failures in a row, or failures for so long, a GPU is not read any more.
_MAX_FAILURES, _MAX_FAILING_NS = 10, 5 * 10**9


class GpuReader:
    """Reads one GPU of a ``NvidiaMeter``, and its module if it is the only GPU of one."""

    def __init__(self, gpu: NvidiaGpu, period_s: float) -> None:
        self.gpu = gpu
        self.problem: str | None = None
        #: Problems that did not end the reading.
        self.notes: list[str] = []
        #: The time between two changes of the counter; None if it is not known.
        self.refresh_s: float | None = None
        self._handle = gpu.handle
        self._failures = 0
        self._failing_ns: int | None = None  # since when
        self._second_ns = self._slow_ns = self._use_ns = 0
        self._uses: list[tuple[int, dict[str, int]]] = []  # percent, since the last evaluation
        self._rates = pynvml.c_nvmlUtilization_t()
        self._last_counter: tuple[int, float] | None = None
        self._reported_ns, self._counter_is_timed = 0, False
        self._means = PeriodMeans(period_s)
        self._empty_reads: dict[str, int] = {}
        self._counter_device: str | None = gpu.uuid  # whose energy the counter counts
        self._newest: Reading = {}
        #: Powers of the GPU and of its module at the same times, in mW.
        self._compared_mw: list[tuple[float, float]] = []
        self._compared_ns = 0
        self._period_s = period_s
        self._probe()

    def _probe(self) -> None:
        handle = self._handle
        wanted = (ENERGY, INSTANT, AVERAGE, THROTTLED, MODULE, MODULE_AVERAGE)
        supported = query_optional(Fields(handle, wanted).read, time.time_ns()) or {}
        self._supported_fields = frozenset(supported)
        self._capability = query_optional(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
        self._energy_by = "field" if ENERGY in supported else None
        if self._energy_by is None and _answers(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle):
            self._energy_by = "call"
        module_fields = [f for f in (MODULE, MODULE_AVERAGE) if f in supported and supported[f][0]]
        self._module_field = module_fields[0] if module_fields else None
        self._buffers: dict[str, SampleBuffer] = {}
        if not self._module_field:  # else "total" power may be that of the module
            self._open_power_buffer()
        for column, kind in (
            ("sm_util", pynvml.NVML_GPU_UTILIZATION_SAMPLES),
            ("mem_util", pynvml.NVML_MEMORY_UTILIZATION_SAMPLES),
        ):
            self._open_buffer(column, kind, 1e-2, FINE_UTIL_S)
        sources = {"instant": INSTANT, "average": AVERAGE}
        self._polled_power = next((name for name in sources if sources[name] in supported), None)
        if self._polled_power is None and _answers(pynvml.nvmlDeviceGetPowerUsage, handle):
            self._polled_power = "usage"
        self._choose_power()
        # What a module is compared with: the same kind of power of its GPU.
        twins = [f for f in (INSTANT, AVERAGE) if f in supported and self._module_field == (f, 1)]
        self._twin_field: Field = twins[0] if twins else self._power_field or USAGE
        watched = [ENERGY, *([self._twin_field, self._module_field] if self._module_field else [])]
        self._watched = Fields(
            handle,
            [field for field in watched if field in supported],
            {field: call for field, call in self._calls.items() if field in watched},
        )
        self._gpm = query_optional(Gpm.open, handle)
        self._facts = features(self.gpu, self._capability)

    def _choose_power(self) -> None:
        """Choose the source of power, and with it the fields to read at every sample."""
        self._power_by = "buffer" if "power_w" in self._buffers else self._polled_power
        power = _POWER_FIELDS.get(self._power_by or "")
        fast: list[Field] = [ENERGY] if self._energy_by == "field" else []
        fast += [field for field in (power, self._module_field) if field not in (None, USAGE)]
        more = [f for f in (AVERAGE, THROTTLED) if f in self._supported_fields and f not in fast]
        self._calls: dict[Field, Callable[[Any], int]] = {}
        if self._energy_by == "call":
            self._calls[ENERGY] = pynvml.nvmlDeviceGetTotalEnergyConsumption
        if power == USAGE:
            self._calls[USAGE] = pynvml.nvmlDeviceGetPowerUsage
        self._power_field = power
        longest_s = _MAX_BUFFERED_S if self._buffers.keys() >= _USES else 1.0
        longest_s = min([longest_s, *(_SPAN_SHARE * b.span_s for b in self._buffers.values())])
        #: The longest time between two readings, in whole seconds, so that meters share wake-ups;
        #: None if the power must be polled.
        self._buffered_s = None if self.is_polled else float(int(longest_s))
        self._due_ns = round(_EARLY * (self._buffered_s or 1.0) * 1e9)
        self._fast_fields = Fields(self._handle, fast, self._calls, _MAX_READINGS)
        self._all_fields = Fields(self._handle, [*fast, *more], self._calls)

    def _open_buffer(self, column: str, kind: int, scale: float, finest_s: float) -> None:
        buffer = query_optional(SampleBuffer.open, self._handle, kind, scale, finest_s)
        if buffer is not None:
            self._buffers[column] = buffer

    def _open_power_buffer(self) -> None:
        finest_s = max(self._period_s, FINE_S)
        self._open_buffer("power_w", pynvml.NVML_TOTAL_POWER_SAMPLES, 1e-3, finest_s)

    @property
    def is_polled(self) -> bool:
        return "power_w" not in self._buffers

    @property
    def has_counter(self) -> bool:
        return self._energy_by is not None

    @property
    def needs_comparisons(self) -> bool:
        """Return whether a module has to be compared with the GPU more often."""
        return self._module_field is not None and len(self._compared_mw) < _COMPARISONS

    def period_s(self, shortest_s: float) -> float:
        """Return the period at which to read the GPU.

        It is as long as the driver's buffers allow. A polled GPU is not read more often than its
        counter changes, if the driver reports when, or than four times a second if its power is a
        mean over 1 s without a counter.
        """
        if self._buffered_s is not None:
            return max(shortest_s, self._buffered_s)
        if is_mean(self._power_by, self._capability) and not self.has_counter:
            return max(shortest_s, _MEAN_PERIOD_S)
        refresh_s = (self.refresh_s or 0.0) if self._counter_is_timed else 0.0
        return refresh_s if refresh_s > _MUCH_SLOWER * shortest_s else shortest_s

    def devices(self) -> list[Device]:
        counter = {"energy_counter": self._energy_by, "counter_refresh_s": self.refresh_s}
        none = dict.fromkeys(counter)
        gpu = {
            **(counter if self._counter_device == self.gpu.uuid else none),
            "power": self._power_by,
            **self._facts,
        }
        gpu["buffers"], gpu["gpm"] = ",".join(self._buffers) or None, self._gpm is not None
        buffer = self._buffers.get("power_w")
        gpu["power_buffer_spacing_s"] = buffer.spacing_s if buffer else None
        gpu["power_buffer_span_s"] = buffer.span_s if buffer else None
        if not (self._power_by or gpu["energy_counter"]):
            virtual = "in a virtual machine with a vGPU, " * (gpu["virtualization"] == "vgpu")
            gpu["failed"] = f"{virtual}the driver reports neither power nor energy of this GPU"
        devices = [Device(self.gpu.uuid, "gpu", self.gpu.name, gpu)]
        if self._module_id is not None:
            facts: dict[str, str | float | bool | None] = {
                **(counter if self._counter_device == self._module_id else none),
                "power": "instant" if self._module_field == MODULE else "average",
                "scope": "processor, GPU and both memories of a module",
                "complements": True,
            }
            name, contains = f"module of {self.gpu.name}", MODULE_CONTAINS
            devices.append(Device(self._module_id, "module", name, facts, contains))
        return devices

    @property
    def _module_id(self) -> str | None:
        """Return the id of the module; None if it is not read, or may have other GPUs as well."""
        is_read = self._module_field is not None and self._capability == ONE_PER_MODULE
        return f"module-{self.gpu.uuid}" if is_read else None

    def watch_counter(self, values: Sequence[FieldValue]) -> None:
        """Derive the refresh period of the counter, and what it counts, from successive values.

        On Grace Hopper the counter is that of the module (Zeus, pull request 172). Where there is
        a module, the mean power by the counter decides; without it the counter is the module's.
        A "module" that draws what its GPU draws is the GPU again.
        """
        # The first value is not of a refresh, but of the beginning of the search.
        steps = sorted(later.t_ns - value.t_ns for value, later in pairwise(values[1:]))
        self.refresh_s = steps[len(steps) // 2] * 1e-9 if steps else None
        self._counter_is_timed = any(value.is_timed for value in values)
        if self._module_field is None:
            return
        compared = self._compared_mw
        if compared and median(module - gpu for gpu, module in compared) < _MIN_REST_MW:
            self._module_field = None
            scopes = str(self._facts["power_scopes"] or "").split(",")
            self._facts["power_scopes"] = ",".join(s for s in scopes if s != "module") or None
            self._open_power_buffer()
            self._choose_power()
            return
        span_ns = values[-1].t_ns - values[1].t_ns if steps else 0
        if span_ns and compared:
            counted_mw = (values[-1].value - values[1].value) / (span_ns * 1e-9)
            if counted_mw < fmean(sum(powers) / 2 for powers in compared):
                return
        self._counter_device = self._module_id

    def read(self, now_ns: int, *, last: bool) -> list[Sample]:
        """Return the new samples; none if the GPU fails, and none after it is lost.

        Between two evaluations, about a second apart, a polled GPU is read without a result.
        """
        if self.problem is not None:
            return []
        is_due = last or now_ns - self._second_ns >= self._due_ns or self._fast_fields.is_full
        if not (is_due or self.is_polled):
            return []
        try:
            (self._all_fields if is_due else self._fast_fields).poll(now_ns)
            self._failures, self._failing_ns = 0, None
            if last or now_ns - self._use_ns >= _USE_NS:
                self._read_use(now_ns)
            if not is_due:
                return []
            self._second_ns = now_ns
            slow = self._read_slow(now_ns, last=last)
            counted = self._counted()
            return counted + self._evaluate(now_ns, slow, last=last)
        except GpuLost as error:
            self.problem = f"{self.gpu.uuid}: lost: {error}"
            self._all_fields.take()  # of this moment
        except pynvml.NVMLError as error:
            self._failures += 1
            self._failing_ns = self._failing_ns or now_ns
            is_failing_long = now_ns - self._failing_ns >= _MAX_FAILING_NS
            if self._failures < _MAX_FAILURES and not is_failing_long:
                return []
            self.problem = f"{self.gpu.uuid}: no longer read: {describe(error)}"
        return self._counted()

    def close(self) -> None:
        if self._gpm is not None:
            self._gpm.close()

    def watch(self) -> FieldValue | None:
        """Return the counter in mJ with its time, and compare a module with its GPU."""
        now_ns = time.time_ns()
        values = self._watched.read(now_ns)
        gpu, module = values.get(self._twin_field), values.get(self._module_field or MODULE)
        if gpu is not None and module is not None and now_ns >= self._compared_ns + _COMPARISON_NS:
            self._compared_ns = now_ns
            self._compared_mw.append((gpu.value, module.value))
        return values.get(ENERGY)

    def _counted(self) -> list[Sample]:
        """Return samples of counter and power of each reading since the last call."""
        samples = []
        readings = self._fast_fields.take() + self._all_fields.take()
        for now_ns, values in readings:
            counter = self._new_counter(values.get(ENERGY), now_ns)
            if counter is not None and self._counter_device is not None:
                energy = {"energy_j": counter[1]}
                samples.append(self._sample(counter[0], energy, self._counter_device))
            powers = (self.gpu.uuid, self._power_field), (self._module_id, self._module_field)
            for device, field in powers:
                power_w = _value(values.get(field), 1e-3) if field is not None else None
                if power_w is not None and device is not None:
                    samples.append(self._sample(now_ns, {"power_w": power_w}, device))
        self._newest = readings[-1][1] if readings else {}
        return samples

    def _evaluate(self, now_ns: int, slow: dict[str, Any], *, last: bool) -> list[Sample]:
        """Return the samples of the driver's buffers and of values that change more slowly."""
        self._read_buffers()
        samples = [
            self._sample(t_ns, {n: scaled(valid(p, _MAX_PERCENT), 1e-2) for n, p in use.items()})
            for t_ns, use in self._uses
        ]
        self._uses.clear()
        samples += [self._sample(*mean) for mean in self._means.take(flush=last)]
        values = self._read_each_second(self._newest) | slow
        if any(value is not None for value in values.values()):
            samples.append(self._sample(now_ns, values))
        return samples

    def _read_use(self, now_ns: int) -> None:
        self._use_ns = now_ns
        if self._buffers.keys() >= _USES:
            return
        rates = self._rates
        code = pynvml.nvmlLib.nvmlDeviceGetUtilizationRates(self._handle, ctypes.byref(rates))
        if not code or query_optional(raise_on_error, code) is not None:
            self._uses.append((now_ns, {"sm_util": rates.gpu, "mem_util": rates.memory}))

    def _read_buffers(self) -> None:
        """Read the driver's buffers; a buffer without new samples is replaced by polling."""
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

    def _new_counter(self, value: FieldValue | None, now_ns: int) -> tuple[int, float] | None:
        """Return the counter as (ns since 1970, J) if it is a new reading."""
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

    def _read_each_second(self, fields: Reading) -> dict[str, Any]:
        throttled_s = _value(fields.get(THROTTLED), 1e-9)
        if THROTTLED not in self._supported_fields:
            policy = pynvml.NVML_PERF_POLICY_POWER
            status = query_optional(pynvml.nvmlDeviceGetViolationStatus, self._handle, policy)
            throttled_s = None if status is None else scaled(valid(status.violationTime), 1e-9)
        memory = query_optional(pynvml.nvmlDeviceGetMemoryInfo, self._handle)
        values: dict[str, Any] = {
            "mem_used_bytes": None if memory is None else valid(memory.used, memory.total),
            "power_average_w": _value(fields.get(AVERAGE), 1e-3),
            "power_throttle_s": throttled_s,
            "sm_clock_mhz": self._clock(pynvml.NVML_CLOCK_SM),
        }
        if self._gpm is not None:
            values |= query_optional(self._gpm.read) or {}
        return values

    def _read_slow(self, now_ns: int, *, last: bool) -> dict[str, Any]:
        """Return the values that change slowly, and check that it is still the same GPU."""
        if not last and now_ns - self._slow_ns < _SLOW_NS:
            return {}
        self._slow_ns, handle = now_ns, self._handle
        uuid = query_optional(pynvml.nvmlDeviceGetUUID, handle)
        if uuid is not None and decode(uuid) != self.gpu.uuid:
            self._fast_fields.take()  # perhaps of the other one
            raise GpuLost(f"another board has replaced it, {decode(uuid)!a}")
        celsius = query_optional(
            pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU
        )
        return {
            "power_limit_w": watts(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle),
            "mem_clock_mhz": self._clock(pynvml.NVML_CLOCK_MEM),
            "temperature_c": valid(celsius, _MAX_C),
            "throttle": throttle_reasons(handle),
        }

    def _clock(self, which: int) -> float | None:
        return valid(query_optional(pynvml.nvmlDeviceGetClockInfo, self._handle, which), _MAX_MHZ)

    def _sample(self, t_ns: int, values: dict[str, Any], device: str | None = None) -> Sample:
        kind: Kind = "gpu" if device in (None, self.gpu.uuid) else "module"
        return Sample(device or self.gpu.uuid, kind, t_ns, power_source="measured", **values)


def _value(field: FieldValue | None, factor: float) -> float | None:
    return None if field is None else field.value * factor


def _answers(call: Callable[[Any], int], handle: Any) -> bool:
    return query_optional(call, handle) is not None
