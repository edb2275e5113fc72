"""Energy, power and utilisation of the NVIDIA GPUs that this process may use."""

import contextlib
import time
from typing import Self

import pynvml

from wattlaw.common.errors import NotAvailable
from wattlaw.measure.devices.meter import Device, Sample, Target
from wattlaw.measure.devices.nvidia.nvml import NVIDIA, Driver, GpuLost, NvidiaGpu, open_driver
from wattlaw.measure.devices.nvidia.nvml_readings import FieldValue
from wattlaw.measure.devices.nvidia.reader import GpuReader

#: The longest search for the refresh period of the counters when a meter is opened.
_REFRESH_SEARCH_S = 0.4
_ENOUGH_CHANGES = 5


class NvidiaMeter:
    """The GPUs that the environment makes visible, each once, by UUID."""

    accelerator = NVIDIA

    def __init__(self, driver: Driver, readers: list[GpuReader], target: Target) -> None:
        self._driver, self._readers = driver, readers
        self._problems: list[str] = []
        self._failed: list[tuple[NvidiaGpu, str]] = []  # visible, but they could not be opened
        watch_counters(readers)
        self._target = target
        self.period_s = self._shortest_period_s()

    @classmethod
    def open(cls, target: Target) -> Self:
        with open_driver(keep=True) as driver:
            own = driver.visible() if target.gpus is None else driver.by_uuid(target.gpus)
            if not own.gpus:
                reasons = own.notes or ("no NVIDIA GPU that this process may use",)
                raise NotAvailable(reasons[0])
            readers, failed = [], []
            for gpu in own.gpus:
                try:
                    readers.append(GpuReader(gpu, target.period_s))
                except (GpuLost, pynvml.NVMLError) as error:
                    failed.append((gpu, f"cannot be read: {error}"))
            problems = [f"{gpu.uuid}: {reason}" for gpu, reason in failed]
            if not readers:
                raise NotAvailable("; ".join(problems))
            meter = cls(driver, readers, target)
            meter._problems, meter._failed = [*own.notes, *problems], failed
            return meter

    def devices(self) -> list[Device]:
        read = [device for reader in self._readers for device in reader.devices()]
        failed = [Device(g.uuid, "gpu", g.name, {"failed": why}) for g, why in self._failed]
        return read + failed

    def read(self, *, last: bool = False) -> list[Sample]:
        samples: list[Sample] = []
        for reader in self._readers:
            samples += reader.read(time.time_ns(), last=last)
        if samples:  # a buffer may have been replaced by polling
            self.period_s = self._shortest_period_s()
        return samples

    def _shortest_period_s(self) -> float:
        return min(reader.period_s(self._target.period_s) for reader in self._readers)

    def problems(self) -> list[str]:
        notes = [note for reader in self._readers for note in reader.notes]
        problems = [reader.problem for reader in self._readers if reader.problem]
        return [*self._problems, *notes, *problems]

    def close(self) -> None:
        with contextlib.suppress(pynvml.NVMLError, GpuLost):
            for reader in self._readers:
                reader.close()
        self._driver.close()


def watch_counters(readers: list[GpuReader]) -> None:
    """Watch all GPUs for a moment: how often each counter changes, and whether modules are real."""
    changes: list[list[FieldValue]] = [[] for _ in readers]
    end_s = time.monotonic() + _REFRESH_SEARCH_S
    while time.monotonic() < end_s and any(
        reader.needs_comparisons or (reader.has_counter and len(values) < _ENOUGH_CHANGES)
        for values, reader in zip(changes, readers, strict=True)
    ):
        for values, reader in zip(changes, readers, strict=True):
            with contextlib.suppress(GpuLost, pynvml.NVMLError):
                counter = reader.watch()
                if counter is not None and (not values or values[-1].value != counter.value):
                    values.append(counter)
        time.sleep(0.001)
    for values, reader in zip(changes, readers, strict=True):
        with contextlib.suppress(GpuLost):  # the next reading reports it
            reader.watch_counter(values)
