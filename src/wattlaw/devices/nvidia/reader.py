"""Reads one board: what is found out at its start, what is read each time, what once a second."""

import time
from typing import Any

import pynvml

from wattlaw.devices.meter import Device, Facts, Sample
from wattlaw.devices.nvidia.driver import (
    GpuLost,
    NvidiaGpu,
    decode,
    describe,
    known,
    query,
    query_optional,
)
from wattlaw.devices.nvidia.fields import AVERAGE, ENERGY, INSTANT, THROTTLED, Fields, FieldValue
from wattlaw.devices.nvidia.gpm import Gpm
from wattlaw.devices.nvidia.sample_buffer import FINE_S, FINE_UTIL_S, PeriodMeans, SampleBuffer

_SCOPES = {0: "gpu", 1: "module", 2: "memory"}
#: A little under a second: a reading that comes once a second may come a little early.
_SECOND_NS = 950_000_000
#: What changes slowly or needs no more.
_SLOW_NS = 4_950_000_000
_OVERDUE_NS = 500_000_000
#: After so many readings without anything new a buffer is not used any more.
_MAX_SILENT = 5
#: The greatest values that a GPU can have; what is above is no value.
_MOST_PERCENT, _MOST_MHZ, _MOST_C, _MOST_REASONS = 100, 20_000, 200, 2**32
#: After so many failures in a row a board is given up.
_MAX_FAILURES = 10


class GpuReader:
    """One board of a ``NvidiaMeter``."""

    def __init__(self, board: NvidiaGpu, period_s: float) -> None:
        self.board = board
        self.problem: str | None = None
        self._handle = board.handle
        self._failures = 0
        self._second_ns = self._slow_ns = 0
        self._last_energy: tuple[int, float] | None = None
        self._reported_ns = 0
        self._means = PeriodMeans(period_s)
        self._silent: dict[str, int] = {}
        #: What is worth telling that did not end the reading.
        self.notes: list[str] = []
        self._probe(period_s)

    def _probe(self, period_s: float) -> None:
        handle = self._handle
        every = Fields(handle, (ENERGY, INSTANT, AVERAGE, THROTTLED))
        told = query_optional(every.read, time.time_ns()) or {}
        self._energy_by = (
            "field"
            if ENERGY in told
            else "call"
            if query_optional(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle) is not None
            else None
        )
        self._throttled_by_field = THROTTLED in told
        self._rings: dict[str, SampleBuffer] = {}
        for column, kind, scale, finest_s in (
            ("power_w", pynvml.NVML_TOTAL_POWER_SAMPLES, 1e-3, max(period_s, FINE_S)),
            ("sm_util", pynvml.NVML_GPU_UTILIZATION_SAMPLES, 1e-2, FINE_UTIL_S),
            ("mem_util", pynvml.NVML_MEMORY_UTILIZATION_SAMPLES, 1e-2, FINE_UTIL_S),
        ):
            ring = query_optional(SampleBuffer.open, handle, kind, scale, finest_s)
            if ring is not None:
                self._rings[column] = ring
        self._supported_fields = frozenset(told)
        self._polled_power = (
            "instant"
            if INSTANT in told
            else "average"
            if AVERAGE in told
            else "usage"
            if query_optional(pynvml.nvmlDeviceGetPowerUsage, handle) is not None
            else None
        )
        self._counter = Fields(handle, [ENERGY])
        self._choose()
        self._gpm = query_optional(Gpm.open, handle)
        self._facts = self._probe_facts()
        self.refresh_s: float | None = None

    def _choose(self) -> None:
        """Choose where power comes from, and with it which fields are read at every sample."""
        self._power_by = "buffer" if "power_w" in self._rings else self._polled_power
        always = {
            ENERGY: self._energy_by == "field",
            INSTANT: self._power_by == "instant",
            AVERAGE: self._power_by == "average",
        }
        fast = [field for field, wanted in always.items() if wanted]
        more = [f for f in (AVERAGE, THROTTLED) if f in self._supported_fields and f not in fast]
        self._fast_fields = Fields(self._handle, fast)
        self._second_fields = Fields(self._handle, [*fast, *more])

    @property
    def is_polled(self) -> bool:
        """Say whether something other than the counter has to be asked at every sample."""
        return not {"power_w", "sm_util", "mem_util"} <= {*self._rings} or not self._power_by

    @property
    def has_counter(self) -> bool:
        """Say whether the board counts its energy."""
        return self._energy_by is not None

    def device(self) -> Device:
        """Return the board with what it supports, as it is written into the run."""
        facts = {**self._facts, "counter_refresh_s": self.refresh_s}
        return Device(self.board.uuid, "gpu", self.board.name, facts)

    def _probe_facts(self) -> Facts:
        now_ns = time.time_ns()
        scopes = [
            name
            for scope, name in _SCOPES.items()
            if query_optional(Fields(self._handle, ((INSTANT, scope),)).read, now_ns)
        ]
        power_ring = self._rings.get("power_w")
        return {
            "energy_counter": self._energy_by,
            "power": self._power_by,
            "power_buffer_spacing_s": power_ring.spacing_s if power_ring else None,
            "power_buffer_span_s": power_ring.span_s if power_ring else None,
            "power_scopes": ",".join(scopes) or None,
            "buffers": ",".join(self._rings) or None,
            "gpm": self._gpm is not None,
            "default_power_limit_w": _scaled(
                known(
                    query_optional(pynvml.nvmlDeviceGetPowerManagementDefaultLimit, self._handle)
                ),
                1e-3,
            ),
            "max_power_limit_w": self._max_limit_w(),
            "power_limit_w": self._limit_w(),
            "is_shared": self.board.is_shared,
        }

    def read(self, now_ns: int, *, last: bool) -> list[Sample]:
        """Return what is new; nothing where the board fails, and nothing ever once it is lost."""
        if self.problem is not None:
            return []
        try:
            found = self._read(now_ns, last=last)
        except GpuLost as error:
            self.problem = f"{self.board.uuid}: lost: {error}"
            return []
        except pynvml.NVMLError as error:
            self._failures += 1
            if self._failures >= _MAX_FAILURES:
                self.problem = f"{self.board.uuid}: given up: {describe(error)}"
            return []
        self._failures = 0
        return found

    def close(self) -> None:
        """Free what the driver allocated for us."""
        if self._gpm is not None:
            self._gpm.close()

    def energy(self) -> FieldValue | None:
        """Return the counter in mJ, and when it was so."""
        now_ns = time.time_ns()
        if self._energy_by == "field":
            return self._counter.read(now_ns).get(ENERGY)
        if self._energy_by == "call":
            told = known(query(pynvml.nvmlDeviceGetTotalEnergyConsumption, self._handle))
            return None if told is None else FieldValue(told, now_ns)
        return None

    def _read(self, now_ns: int, *, last: bool) -> list[Sample]:
        a_second = last or now_ns - self._second_ns >= _SECOND_NS
        told = (self._second_fields if a_second else self._fast_fields).read(now_ns)
        counted = self._counted(told.get(ENERGY), now_ns)
        values: dict[str, Any] = {}
        if "power_w" not in self._rings:
            values["power_w"] = self._power(told)
        if not {"sm_util", "mem_util"} <= {*self._rings}:
            use = query_optional(pynvml.nvmlDeviceGetUtilizationRates, self._handle)
            if use is not None:
                values["sm_util"] = _scaled(known(use.gpu, _MOST_PERCENT), 1e-2)
                values["mem_util"] = _scaled(known(use.memory, _MOST_PERCENT), 1e-2)
        if a_second or self.is_polled:
            values["sm_clock_mhz"] = self._clock(pynvml.NVML_CLOCK_SM)
        samples = []
        if a_second:
            self._second_ns = now_ns
            self._drain()
            samples += [self._sample(*mean) for mean in self._means.take(flush=last)]
            values |= self._each_second(told)
        if last or now_ns - self._slow_ns >= _SLOW_NS:
            self._slow_ns = now_ns
            values |= self._slow()
        if counted is not None:
            samples.append(self._sample(counted[0], {"energy_j": counted[1]}))
        if any(value is not None for value in values.values()):
            samples.append(self._sample(now_ns, values))
        return samples

    def _drain(self) -> None:
        """Take what the buffers hold; one that has gone silent is polled for from then on."""
        for column, ring in list(self._rings.items()):
            series = query_optional(ring.new) or ((), ())
            self._means.add(column, series, ring.scale)
            self._silent[column] = 0 if series[0] else self._silent.get(column, 0) + 1
            if self._silent[column] >= _MAX_SILENT:
                del self._rings[column]
                self.notes.append(f"{self.board.uuid}: the driver's buffer of {column} fell silent")
                self._choose()

    def _counted(self, told: FieldValue | None, now_ns: int) -> tuple[int, float] | None:
        """Return the counter's reading, (ns since 1970, J), where it is a new one."""
        found = self.energy() if self._energy_by == "call" else told
        if found is None:
            return None
        counted = (found.t_ns, found.value * 1e-3)
        if counted == self._last_energy:
            # Told again only when it is overdue: that is how a counter that stands still is seen.
            overdue_ns = max(_OVERDUE_NS, round(3e9 * (self.refresh_s or 0)))
            if now_ns - counted[0] < overdue_ns or now_ns - self._reported_ns < overdue_ns:
                return None
            self._reported_ns = now_ns
            return now_ns, counted[1]
        if self._last_energy is not None and counted[0] <= self._last_energy[0]:
            counted = (now_ns, counted[1])  # a new value at no new time: the driver's clock is off
        self._last_energy, self._reported_ns = counted, now_ns
        return counted

    def _power(self, told: dict[int, FieldValue]) -> float | None:
        if self._power_by == "usage":
            return _scaled(known(query(pynvml.nvmlDeviceGetPowerUsage, self._handle)), 1e-3)
        return _value(told.get(INSTANT if self._power_by == "instant" else AVERAGE), 1e-3)

    def _each_second(self, told: dict[int, FieldValue]) -> dict[str, Any]:
        """Return what is read once a second."""
        throttled_s = _value(told.get(THROTTLED), 1e-9)
        if not self._throttled_by_field:
            policy = pynvml.NVML_PERF_POLICY_POWER
            found = query_optional(pynvml.nvmlDeviceGetViolationStatus, self._handle, policy)
            throttled_s = None if found is None else _scaled(known(found.violationTime), 1e-9)
        values: dict[str, Any] = {
            "power_average_w": _value(told.get(AVERAGE), 1e-3),
            "power_throttle_s": throttled_s,
        }
        if self._gpm is not None:
            values |= query_optional(self._gpm.read) or {}
        return values

    def _slow(self) -> dict[str, Any]:
        """Return what is read now and then."""
        handle = self._handle
        uuid = query_optional(pynvml.nvmlDeviceGetUUID, handle)
        if uuid is not None and decode(uuid) != self.board.uuid:
            raise GpuLost(f"it was replaced by another board, {decode(uuid)!a}")
        memory = query_optional(pynvml.nvmlDeviceGetMemoryInfo, handle)
        celsius = query_optional(
            pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU
        )
        return {
            "power_limit_w": self._limit_w(),
            "mem_used_bytes": None if memory is None else known(memory.used, memory.total),
            "mem_clock_mhz": self._clock(pynvml.NVML_CLOCK_MEM),
            "temperature_c": known(celsius, _MOST_C),
            "throttle": self._reasons(),
        }

    def _reasons(self) -> int | None:
        """Return the bit mask of what holds the clocks down, also from drivers before 535."""
        new, old = (
            pynvml.nvmlDeviceGetCurrentClocksEventReasons,
            pynvml.nvmlDeviceGetCurrentClocksThrottleReasons,
        )
        told = query_optional(new, self._handle)
        told = query_optional(old, self._handle) if told is None else told
        return None if known(told, _MOST_REASONS) is None else told

    def _limit_w(self) -> float | None:
        told = query_optional(pynvml.nvmlDeviceGetEnforcedPowerLimit, self._handle)
        return _scaled(known(told), 1e-3)

    def _max_limit_w(self) -> float | None:
        told = query_optional(pynvml.nvmlDeviceGetPowerManagementLimitConstraints, self._handle)
        return _scaled(known(told[1]), 1e-3) if told else None

    def _clock(self, which: int) -> float | None:
        return known(query_optional(pynvml.nvmlDeviceGetClockInfo, self._handle, which), _MOST_MHZ)

    def _sample(self, t_ns: int, values: dict[str, Any]) -> Sample:
        return Sample(self.board.uuid, "gpu", t_ns, power_source="measured", **values)


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _value(field: FieldValue | None, factor: float) -> float | None:
    return None if field is None else field.value * factor
