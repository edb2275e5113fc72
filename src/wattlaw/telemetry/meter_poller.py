"""Polls a meter on an absolute schedule, and reports how the polling went."""

import math
import time
from collections.abc import Callable

from wattlaw.devices.meter import Device, Meter, Sample
from wattlaw.errors import BadInput, WattlawError, one_line
from wattlaw.store.record import MeterReport

#: The longest that a meter may take to be read, and to open.
READ_TIMEOUT_S = 10.0
OPEN_TIMEOUT_S = 30.0


class MeterPoller:
    """One meter and its schedule. A broken meter is given up; the telemetry of the run goes on.

    Parameters
    ----------
    name
        The meter's name.
    open_meter
        Returns the meter, or raises a ``WattlawError`` that says why there is none.
    """

    def __init__(self, name: str, open_meter: Callable[[], Meter]) -> None:
        self.name = name
        self.unavailable: str | None = None
        self.devices: list[Device] = []
        self.next_s: float | None = None  # None: there is nothing to read
        self.waiting_since_s: float | None = None  # since when a call of the meter is running
        self._limit_s = OPEN_TIMEOUT_S
        self._open_meter = open_meter
        self._meter: Meter | None = None
        self._problem: str | None = None
        self._late_s = 0.0
        self._reads = self._missed = 0

    def open(self) -> None:
        """Open the meter."""
        self.waiting_since_s = time.monotonic()
        try:
            meter = self._open_meter()
            self.devices = meter.devices()
            if not all(device.id.isprintable() for device in self.devices):
                raise BadInput("a device has an id that cannot be printed")
            if not 0 < meter.period_s < math.inf:
                raise BadInput(f"a meter cannot be read every {meter.period_s} s")
            if self.devices:
                self._meter = meter
            else:
                meter.close()
        except WattlawError as error:
            self.unavailable = one_line(error)
        except Exception as error:
            self.unavailable = f"cannot be opened: {one_line(error)}"
        finally:
            self.waiting_since_s, self._limit_s = None, READ_TIMEOUT_S

    def begin(self, first_s: float) -> None:
        """Schedule the first reading, at a time of the monotonic clock."""
        if self._meter is not None:
            self.next_s = first_s

    def read(self, now_s: float, *, last: bool = False) -> list[Sample]:
        """Read the meter, and schedule the next reading."""
        if self._meter is None or self.next_s is None:
            return []
        self.waiting_since_s = now_s
        try:
            samples = self._meter.read(last=last)
        except Exception as error:
            self.give_up(one_line(error))
            return []
        finally:
            self.waiting_since_s = None
        if self.next_s is None:  # it was given up while it was read
            return []
        self._late_s += max(0.0, now_s - self.next_s)
        self._reads += 1
        period_s = self._meter.period_s
        periods = max(1, int((time.monotonic() - self.next_s) / period_s) + 1)
        self._missed += periods - 1
        self.next_s += periods * period_s
        return samples

    def close(self) -> None:
        """Close the meter."""
        if self._meter is not None and self.next_s is not None:
            self.waiting_since_s = time.monotonic()
            try:
                self._meter.close()
            except Exception as error:  # the samples are safe
                self._problem = f"{self.name}: {one_line(error)}"
            finally:
                self.waiting_since_s = self.next_s = None

    def is_hung(self) -> bool:
        """Return whether a call of the meter has exceeded its time limit."""
        waiting_since_s = self.waiting_since_s
        return waiting_since_s is not None and time.monotonic() - waiting_since_s > self._limit_s

    def give_up(self, reason: str) -> None:
        """Stop polling this meter, also if a call of it is still running."""
        self.next_s, self._limit_s = None, math.inf
        self._problem = f"{self.name} given up: {reason}"

    def problems(self) -> list[str]:
        """Return the problems since the meter was opened."""
        problems = self._meter.problems() if self._meter is not None else []
        return [*problems, self._problem] if self._problem else list(problems)

    def report(self) -> MeterReport:
        """Return the number of readings and their delays."""
        return MeterReport(
            period_s=self._meter.period_s if self._meter is not None else 0.0,
            reads=self._reads,
            missed=self._missed,
            late_s=self._late_s / self._reads if self._reads else 0.0,
        )
