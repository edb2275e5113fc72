"""What this machine can measure and limit, by which meter and limiter, and why not."""

import os
from dataclasses import dataclass

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
    """One registered limiter: how its devices stand, or why there are none."""

    name: str
    devices: tuple[LimitState, ...] = ()
    reason: str | None = None


def list_meters() -> list[MeterAvailability]:
    """Open every registered meter for a moment."""
    found = []
    for name in registry.names(meters.GROUP):
        try:
            meter = registry.load(meters.GROUP, name).open(Target(os.getpid()))
        except WattlawError as error:
            found.append(MeterAvailability(name, reason=str(error)))
            continue
        except Exception as error:  # a broken plug-in hides no other
            found.append(MeterAvailability(name, reason=f"cannot be opened: {one_line(error)}"))
            continue
        found.append(MeterAvailability(name, tuple(meter.devices()), None, tuple(meter.problems())))
        meter.close()
    return found


def list_limiters() -> list[LimiterAvailability]:
    """Open every registered limiter for a moment; nothing is changed."""
    found = []
    for name in registry.names(limiters.GROUP):
        try:
            limiter = registry.load(limiters.GROUP, name).open()
        except WattlawError as error:
            found.append(LimiterAvailability(name, reason=str(error)))
            continue
        except Exception as error:  # a broken plug-in hides no other
            found.append(LimiterAvailability(name, reason=f"cannot be opened: {one_line(error)}"))
            continue
        states: list[LimitState] = []
        reason = None
        for device in limiter.devices():
            try:
                states.append(limiter.read(device))
            except WattlawError as error:
                reason = str(error)
        found.append(LimiterAvailability(name, tuple(states), reason))
        limiter.close()
    return found
