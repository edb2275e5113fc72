"""What this machine can measure and limit, by which meter and limiter, and why not."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from wattlaw import registry
from wattlaw.devices import limiter as limiters
from wattlaw.devices import meter as meters
from wattlaw.devices.limiter import LimitState
from wattlaw.devices.meter import Device, Target
from wattlaw.errors import WattlawError, one_line


@dataclass(frozen=True)
class MeterAvailability:
    """One registered meter: its devices, or why there are none."""

    name: str
    devices: tuple[Device, ...] = ()
    reason: str | None = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class LimiterAvailability:
    """One registered limiter: the states of its devices, or why there are none."""

    name: str
    devices: tuple[LimitState, ...] = ()
    reason: str | None = None


def list_meters() -> list[MeterAvailability]:
    """Open every registered meter for a moment."""
    available = []
    for name, meter, reason in _open_all(meters.GROUP, Target(os.getpid())):
        if meter is None:
            available.append(MeterAvailability(name, reason=reason))
            continue
        devices, problems = tuple(meter.devices()), tuple(meter.problems())
        available.append(MeterAvailability(name, devices, None, problems))
        meter.close()
    return available


def list_limiters() -> list[LimiterAvailability]:
    """Open every registered limiter for a moment; this changes nothing."""
    available = []
    for name, limiter, failure in _open_all(limiters.GROUP):
        states: list[LimitState] = []
        reason = failure
        if limiter is not None:
            for device in limiter.devices():
                try:
                    states.append(limiter.read(device))
                except WattlawError as error:
                    reason = str(error)
            limiter.close()
        available.append(LimiterAvailability(name, tuple(states), reason))
    return available


def _open_all(group: str, *arguments: Any) -> Iterator[tuple[str, Any, str | None]]:
    """Yield the name of each plug-in with the opened plug-in, or None and the reason."""
    for name in registry.names(group):
        try:
            opened = registry.load(group, name).open(*arguments)
        except WattlawError as error:
            yield name, None, str(error)
        except Exception as error:  # a broken plug-in does not hide the others
            yield name, None, f"cannot be opened: {one_line(error)}"
        else:
            yield name, opened, None
