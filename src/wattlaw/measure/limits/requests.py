"""Requested limits: whether a device can have them, and which ones it enforces in the end."""

import socket
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from wattlaw.common.errors import NotAvailable
from wattlaw.measure.devices.limiter import Limiter, LimitState
from wattlaw.measure.limits.restore import LIMIT_TOLERANCE_W
from wattlaw.measure.limits.state_folder import SavedState, boot_id
from wattlaw.store.record import LimitReport

_ENFORCED_AFTER_S = 0.5


@dataclass(frozen=True)
class Limits:
    """The limits for all devices of a run. None leaves a limit as it is."""

    power_limit_w: float | None = None
    clock_limit_mhz: float | None = None
    power_profile: str | None = None

    @property
    def are_none(self) -> bool:
        return self == Limits()


def changes(device: str, limits: Limits) -> dict[str, Callable[[Limiter], None]]:
    """Return what a limiter has to do for each requested part: power, clock, profile."""
    watts, mhz, profile = limits.power_limit_w, limits.clock_limit_mhz, limits.power_profile
    calls: dict[str, Callable[[Limiter], None]] = {}
    if watts is not None:
        calls["power"] = lambda limiter: limiter.set_power_limit(device, watts)
    if mhz is not None:
        calls["clock"] = lambda limiter: limiter.lock_clock(device, mhz)
    if profile is not None:
        calls["profile"] = lambda limiter: limiter.request_profiles(device, (profile,))
    return calls


def check_range(state: LimitState, limits: Limits, devices: Collection[str] = ()) -> None:
    """Raise ``NotAvailable`` if a limit is outside the device's range, would apply to others than
    ``devices``, too, or the previous limit could not be restored."""
    name = f"{state.name} ({state.device})"
    if state.is_shared:
        parts = "instances of MIG, partitions or tiles"
        raise NotAvailable(
            f"others may use a part of {name} ({parts}): a limit would apply to all its users"
        )
    others = [device for device in state.limited_with if device not in devices]
    if limits.power_limit_w is not None and others:
        raise NotAvailable(
            f"{name} shares its power limit with {', '.join(others)}; limit them together"
        )
    if limits.power_limit_w is not None and state.power_limit_w is None:
        raise NotAvailable(f"{name} does not report its power limit, so it could not be restored")
    if limits.power_profile is not None and limits.power_profile not in state.power_profiles:
        offered = ", ".join(state.power_profiles) or "none"
        raise NotAvailable(
            f"{name} does not support the power profile {limits.power_profile}; it has: {offered}"
        )
    for kind, value, low, high, unit in (
        ("power limit", limits.power_limit_w, state.min_w, state.max_w, "W"),
        ("clock limit", limits.clock_limit_mhz, state.min_mhz, state.max_mhz, "MHz"),
    ):
        if value is None:
            continue
        if low is None or high is None:
            reason = state.no_clock_limit_reason if unit == "MHz" else None
            raise NotAvailable(
                f"{name} does not support a {kind}" + (f": {reason}" if reason else "")
            )
        allowed = f"{low:g} to {high:g} {unit} of {name}"
        if not low <= value <= high:
            raise NotAvailable(f"a {kind} of {value:g} {unit} is outside {allowed}")
        before = low if unit == "MHz" or state.power_limit_w is None else state.power_limit_w
        if not low - LIMIT_TOLERANCE_W <= before <= high + LIMIT_TOLERANCE_W:
            raise NotAvailable(
                f"the present {kind} of {before:g} {unit} is outside {allowed}, so it could not be "
                "restored"
            )


def is_enforced(requested_w: float, enforced_w: float | None) -> bool:
    return enforced_w is not None and abs(enforced_w - requested_w) <= LIMIT_TOLERANCE_W


def watts_text(enforced_w: float | None) -> str:
    return "an unknown limit" if enforced_w is None else f"{enforced_w:g} W"


def state_to_save(state: LimitState, limits: Limits, **owner: Any) -> SavedState:
    return SavedState(
        device=state.device,
        host=socket.gethostname(),
        power_limit_w=state.power_limit_w if limits.power_limit_w is not None else None,
        set_w=limits.power_limit_w,
        unlock_clock=limits.clock_limit_mhz is not None,
        power_profiles=state.requested_profiles if limits.power_profile is not None else None,
        made_at=datetime.now(UTC),
        boot_id=boot_id(),
        **owner,
    )


def report_applied_limits(
    state: LimitState, limits: Limits, name: str, limiter: Limiter
) -> LimitReport:
    """Read back the limits of a device; a note says what it enforces instead of a request."""
    requested_w, profile = limits.power_limit_w, limits.power_profile
    end_s = time.monotonic() + _ENFORCED_AFTER_S
    while True:  # a driver may take a moment
        now = limiter.read(state.device)
        enforced_w, enforced = now.enforced_w, now.enforced_profiles
        differences = []
        if requested_w is not None and not is_enforced(requested_w, enforced_w):
            differences.append(f"enforces {watts_text(enforced_w)} instead of {requested_w:g} W")
        if profile is not None and profile not in enforced:
            actual = ", ".join(enforced) or "no power profile"
            differences.append(f"enforces {actual} instead of {profile}")
        if not differences or time.monotonic() > end_s:
            break
        time.sleep(0.05)
    return LimitReport(
        host=socket.gethostname(),
        device=state.device,
        limiter=name,
        power_limit_w=requested_w,
        power_limit_enforced_w=enforced_w,
        power_limit_before_w=state.power_limit_w,
        clock_limit_mhz=limits.clock_limit_mhz,
        power_profile=profile,
        note=f"{state.device} {' and '.join(differences)}" if differences else None,
    )
