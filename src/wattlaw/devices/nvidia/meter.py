"""Energy, power and use of NVIDIA GPUs: the boards that are ours, and no others."""

import contextlib
import time
from typing import Self

import pynvml

from wattlaw.devices.meter import Device, Sample, Target
from wattlaw.devices.nvidia.driver import Driver, GpuLost, NvidiaGpu
from wattlaw.devices.nvidia.reader import GpuReader
from wattlaw.errors import NotAvailable

#: How long the refresh period of the counters is looked for when a meter is opened.
_SEARCH_S = 0.4
_ENOUGH_CHANGES = 5
#: How often boards are read whose driver keeps power and utilisation itself.
BUFFERED_S = 1.0


class NvidiaMeter:
    """The boards that the environment makes visible, each once, by UUID."""

    def __init__(self, driver: Driver, readers: list[GpuReader], target: Target) -> None:
        self._driver, self._readers = driver, readers
        self._problems: list[str] = []
        self._lost: list[tuple[NvidiaGpu, str]] = []  # ours, but they could not be opened
        find_refresh_periods(readers)
        if any(reader.is_polled for reader in readers):
            self.period_s = target.period_s
        else:  # the driver's buffers keep what lies between, and shape the counter's edges
            self.period_s = max(target.period_s, BUFFERED_S)

    @classmethod
    def open(cls, target: Target) -> Self:
        """Find the boards and what each supports.

        Raises
        ------
        NotAvailable
            There is no driver, no GPU that is ours, or none that can be read.
        """
        driver = Driver.open()
        try:
            notes: list[str] = []
            if target.gpus is None:
                boards, notes = driver.visible()
            else:
                boards = driver.named(target.gpus)
            if not boards:
                raise NotAvailable(notes[0] if notes else "no NVIDIA GPU that is ours")
            readers, lost = [], []
            for board in boards:
                try:
                    readers.append(GpuReader(board, target.period_s))
                except (GpuLost, pynvml.NVMLError) as error:
                    lost.append((board, f"cannot be read: {error}"))
            told = [f"{board.uuid}: {why}" for board, why in lost]
            if not readers:
                raise NotAvailable("; ".join(told))
            meter = cls(driver, readers, target)
        except pynvml.NVMLError as error:
            driver.close()
            raise NotAvailable(f"the NVIDIA driver does not answer: {error}") from None
        except BaseException:
            driver.close()
            raise
        meter._problems, meter._lost = [*notes, *told], lost
        return meter

    def devices(self) -> list[Device]:
        """Return the boards with what they support."""
        read = [reader.device() for reader in self._readers]
        lost = [Device(b.uuid, "gpu", b.name, {"failed": why}) for b, why in self._lost]
        return read + lost

    def read(self, *, last: bool = False) -> list[Sample]:
        """Return what is new of each board that answers."""
        samples: list[Sample] = []
        for reader in self._readers:
            samples += reader.read(time.time_ns(), last=last)
        return samples

    def problems(self) -> list[str]:
        """Return why boards stopped having samples."""
        told = [*self._problems, *(note for reader in self._readers for note in reader.notes)]
        return told + [reader.problem for reader in self._readers if reader.problem]

    def close(self) -> None:
        """Let the driver go."""
        with contextlib.suppress(pynvml.NVMLError, GpuLost):
            for reader in self._readers:
                reader.close()
        self._driver.close()


def find_refresh_periods(readers: list[GpuReader]) -> None:
    """Watch the counters of all boards for a moment; note for each how often its value changes."""
    changes: dict[int, list[int]] = {place: [] for place in range(len(readers))}
    last: dict[int, float] = {}
    end_s = time.monotonic() + _SEARCH_S
    while time.monotonic() < end_s and any(
        len(changes[place]) < _ENOUGH_CHANGES
        for place, reader in enumerate(readers)
        if reader.has_counter
    ):
        for place, reader in enumerate(readers):
            with contextlib.suppress(GpuLost, pynvml.NVMLError):
                counted = reader.energy()
                if counted is not None and last.get(place) != counted.value:
                    changes[place].append(counted.t_ns)
                    last[place] = counted.value
        time.sleep(0.001)
    for place, reader in enumerate(readers):
        # The first change is where we came in, not a refresh.
        steps = [b - a for a, b in zip(changes[place][1:], changes[place][2:], strict=False)]
        reader.refresh_s = sorted(steps)[len(steps) // 2] * 1e-9 if steps else None
