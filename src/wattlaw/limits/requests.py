"""What is asked of devices: limits, whether they can be set, and what was set in the end."""

import socket
import time
from dataclasses import dataclass

from wattlaw.devices.limiter import Limiter, LimitState
from wattlaw.errors import NotAvailable
from wattlaw.limits.restore import SAME_W
from wattlaw.store.record import LimitReport

_ENFORCED_AFTER_S = 0.5


@dataclass(frozen=True)
class Limits:
    """One cap for all devices of a run; None leaves that as it is."""

    power_limit_w: float | None = None
    clock_limit_mhz: float | None = None

    @property
    def are_none(self) -> bool:
        """Say whether nothing is to be limited."""
        return self.power_limit_w is None and self.clock_limit_mhz is None


def check_range(state: LimitState, limits: Limits) -> None:
    """Check that a device can be limited so.

    Raises
    ------
    NotAvailable
        A limit is outside its range, or what is there could not be given back.
    """
    if state.is_shared:
        told = "is in MIG mode: a limit would be everybody's who uses a part of it"
        raise NotAvailable(f"{state.name} ({state.device}) {told}")
    if limits.power_limit_w is not None and state.power_limit_w is None:
        told = f"{state.name} ({state.device}) does not tell its power limit"
        raise NotAvailable(f"{told}, so it could not be given back")
    for what, asked, low, high, unit in (
        ("power limit", limits.power_limit_w, state.min_w, state.max_w, "W"),
        ("clock limit", limits.clock_limit_mhz, state.min_mhz, state.max_mhz, "MHz"),
    ):
        if asked is None:
            continue
        if low is None or high is None:
            raise NotAvailable(f"{state.name} ({state.device}) cannot be given a {what}")
        if not low <= asked <= high:
            raise NotAvailable(
                f"a {what} of {asked:g} {unit} is outside {low:g} to {high:g} {unit} "
                f"of {state.name} ({state.device})"
            )


def applied(state: LimitState, limits: Limits, name: str, limiter: Limiter) -> LimitReport:
    """Read back what was set; what differs from what was asked for is told, not hidden."""
    asked = limits.power_limit_w
    end_s = time.monotonic() + _ENFORCED_AFTER_S
    while True:  # a driver may take a moment
        enforced = limiter.read(state.device).enforced_w
        differs = asked is not None and (enforced is None or abs(enforced - asked) > SAME_W)
        if not differs or time.monotonic() > end_s:
            break
        time.sleep(0.05)
    note = None
    if differs:
        kept = "an unknown limit" if enforced is None else f"{enforced:g} W"
        note = f"{state.device} enforces {kept} instead of {asked:g} W"
    return LimitReport(
        host=socket.gethostname(),
        device=state.device,
        limiter=name,
        power_limit_w=asked,
        power_limit_enforced_w=enforced,
        power_limit_before_w=state.power_limit_w,
        clock_limit_mhz=limits.clock_limit_mhz,
        note=note,
    )
