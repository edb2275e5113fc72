"""Energy, power and utilisation of the NVIDIA GPUs that this process may use."""

import contextlib
import os
import time
from typing import Self

import pynvml

from wattlaw.common.errors import NotAvailable
from wattlaw.measure.devices.meter import Device, Sample, Target
from wattlaw.measure.devices.nvidia.nvml import NVIDIA, GpuLost, NvidiaGpu, open_driver, select_gpus
from wattlaw.measure.devices.nvidia.nvml_readings import FieldValue
from wattlaw.measure.devices.nvidia.reader import GpuReader
from wattlaw.measure.devices.visible import GpuSelection

#: The longest search for the refresh period of the counters when a meter is opened.
_REFRESH_SEARCH_S = 0.4
_ENOUGH_CHANGES = 5


class NvidiaMeter:
    """The GPUs that the environment makes visible, each once, by UUID."""

    accelerator = NVIDIA

    _driver: contextlib.ExitStack

    def __init__(self, own: GpuSelection[NvidiaGpu], target: Target) -> None:
        if not own.gpus:
            raise NotAvailable((*own.notes, "no NVIDIA GPU that this process may use")[0])
        self._target = target
        self._readers: list[GpuReader] = []
        self._failed: list[Device] = []  # visible, but they could not be opened
        self._problems = list(own.notes)
        for gpu in own.gpus:
            try:
                self._readers.append(GpuReader(gpu, target.period_s))
            except (GpuLost, pynvml.NVMLError) as error:
                reason = f"cannot be read: {error}"
                self._failed.append(Device(gpu.uuid, "gpu", gpu.name, {"failed": reason}))
                self._problems.append(f"{gpu.uuid}: {reason}")
        if not self._readers:
            raise NotAvailable("; ".join(self._problems[len(own.notes) :]))
        _watch_counters(self._readers)
        self.period_s = self._shortest_period_s()

    @classmethod
    def open(cls, target: Target) -> Self:
        with contextlib.ExitStack() as stack:
            gpus = stack.enter_context(open_driver())
            meter = cls(select_gpus(gpus, os.environ), target)
            meter._driver = stack.pop_all()
        return meter

    def devices(self) -> list[Device]:
        read = [reader.device() for reader in self._readers]
        return read + self._failed

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
        self._driver.close()


def _watch_counters(readers: list[GpuReader]) -> None:
    watched: list[tuple[GpuReader, list[FieldValue]]] = [(reader, []) for reader in readers]
    end_s = time.monotonic() + _REFRESH_SEARCH_S
    while time.monotonic() < end_s and any(
        reader.has_counter and len(changes) < _ENOUGH_CHANGES for reader, changes in watched
    ):
        for reader, changes in watched:
            with contextlib.suppress(GpuLost, pynvml.NVMLError):
                counter = reader.counter()
                if counter is not None and (not changes or changes[-1].value != counter.value):
                    changes.append(counter)
        time.sleep(0.001)
    for reader, changes in watched:
        reader.time_counter(changes)
