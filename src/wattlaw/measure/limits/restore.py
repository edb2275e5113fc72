"""Restores the previous limits of devices from their saved states."""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from wattlaw.common import registry
from wattlaw.common.errors import NotAvailable, WattlawError, one_line
from wattlaw.common.files import remove_abandoned
from wattlaw.measure.devices.limiter import GROUP, Limiter, Limiters
from wattlaw.measure.limits.state_folder import SavedState, StateFolder

Outcome = Literal["restored", "in use", "kept", "on another host", "not restored"]

#: A limit that is read back may differ from the requested one by what drivers round off.
LIMIT_TOLERANCE_W = 0.5
#: A limit this close to the one that was set counts as unchanged; real changes are larger.
_SAME_SETTING_W = 2.0
#: If the driver refuses a change, the limit is as before to the milliwatt.
_UNCHANGED_TOLERANCE_W = 0.001


@contextlib.contextmanager
def open_limiters() -> Iterator[Limiters]:
    """By name, in the order in which to try them. One that cannot be opened does not stop the
    others."""
    limiters: Limiters = {}
    try:
        for name in registry.names(GROUP):
            with contextlib.suppress(Exception):
                limiters[name] = registry.load(GROUP, name).open()
        yield limiters
    finally:
        for limiter in limiters.values():
            with contextlib.suppress(Exception):
                limiter.close()


def limiters_for(device: str, limiters: Limiters) -> Limiters:
    usable = {}
    for name, limiter in limiters.items():
        with contextlib.suppress(Exception):  # a broken limiter does not stop the next one
            if device in limiter.devices():
                usable[name] = limiter
    return usable


def restore(saved: SavedState, limiters: Limiters) -> None:
    """Set a device to its saved state by the first limiter that can, and check the result. Of power
    limit, clock and profiles all are tried before ``NotAvailable`` says why one failed."""
    usable = list(limiters_for(saved.device, limiters).values())
    reasons = []
    if saved.power_limit_w is not None:
        reasons += _try_each(usable, _restore_power, saved)
        if reasons and usable and all(_is_unchanged(limiter, saved) for limiter in usable):
            reasons = []  # no limiter may set the limit, so it is unchanged
    if saved.unlock_clock:
        reasons += _try_each(usable, lambda limiter, s: limiter.unlock_clock(s.device), saved)
    if saved.power_profiles is not None:
        reasons += _try_each(usable, _restore_profiles, saved)
    if reasons:
        raise NotAvailable(f"not restored: {'; '.join(reasons)}")


def _try_each(
    limiters: list[Limiter], change: Callable[[Limiter, SavedState], None], saved: SavedState
) -> list[str]:
    """Make a change by the first limiter that can; return why none could, or nothing."""
    reasons = [] if limiters else [f"{saved.device}: nothing on this machine can limit it"]
    for limiter in limiters:
        try:
            change(limiter, saved)
        except Exception as error:  # a broken limiter does not stop the next one
            reasons.append(one_line(error))
        else:
            return []
    return reasons


def _restore_power(limiter: Limiter, saved: SavedState) -> None:
    previous_w = saved.power_limit_w or 0.0
    limiter.set_power_limit(saved.device, previous_w)
    now_w = limiter.read(saved.device).power_limit_w
    if now_w is None or abs(now_w - previous_w) > LIMIT_TOLERANCE_W:
        raise NotAvailable(f"{saved.device}: reads {now_w} W after {previous_w:g} W was set")


def _restore_profiles(limiter: Limiter, saved: SavedState) -> None:
    previous = saved.power_profiles or ()
    limiter.request_profiles(saved.device, previous)
    state = limiter.read(saved.device)
    now = state.requested_profiles
    if not state.power_profiles or {*now} != {*previous}:  # without any it did not answer
        raise NotAvailable(
            f"{saved.device}: the requested power profiles are {', '.join(now) or 'none'} after "
            f"{', '.join(previous) or 'none'} were set"
        )


def _is_unchanged(limiter: Limiter, saved: SavedState) -> bool:
    with contextlib.suppress(Exception):  # unknown, so not known to be unchanged
        now_w, previous_w = limiter.read(saved.device).power_limit_w, saved.power_limit_w
        if now_w is not None and previous_w is not None:
            return abs(now_w - previous_w) < _UNCHANGED_TOLERANCE_W
    return False


@dataclass(frozen=True)
class StaleLimit:
    saved: SavedState
    state: Outcome
    reason: str | None = None


def restore_stale(
    folder: StateFolder, *, include_kept: bool = False
) -> tuple[list[StaleLimit], list[str]]:
    """Restore the limits that ended processes have left; return them, and what files are damaged.
    ``include_kept`` adds those of ``wattlaw limits set``."""
    states, damaged = folder.survey()
    remove_abandoned(folder.path)  # temporary files of killed writers
    if not states:
        return [], damaged
    with open_limiters() as limiters:
        stale = [_try_restore(folder, one, limiters, include_kept=include_kept) for one in states]
    return stale, damaged


def _try_restore(
    folder: StateFolder, saved: SavedState, limiters: Limiters, *, include_kept: bool
) -> StaleLimit:
    locks: list[int] | None = None
    try:
        locks = folder.lock(saved.device)
        if locks is None:
            return StaleLimit(saved, "in use")
        present = folder.read(saved.device)  # the lock keeps others from changing it
        if present is None:
            return StaleLimit(saved, "restored")
        if not present.is_for_this_host:
            return StaleLimit(present, "on another host")
        if present.kept and not include_kept and present.is_from_this_boot:
            return StaleLimit(present, "kept")
        recover(folder, present, limiters)
    except (WattlawError, OSError) as error:
        return StaleLimit(saved, "not restored", one_line(error))
    finally:
        for handle in locks or ():
            os.close(handle)
    return StaleLimit(saved, "restored")


def recover(folder: StateFolder, saved: SavedState, limiters: Limiters) -> None:
    """Restore what an ended process has left limited and remove its file; the device is locked.
    Raises ``NotAvailable`` if it could not, or somebody else has changed the limit since."""
    now_w = None
    if saved.is_from_this_boot:  # drivers forget limits at a boot
        now_w = _changed_by_others(saved, limiters)
        if now_w is not None:
            saved = saved.model_copy(update={"power_limit_w": None})
        restore(saved, limiters)
    folder.remove(saved.device)
    if now_w is not None:
        raise NotAvailable(f"{saved.device}: somebody has set {now_w:g} W since; it stays")


def _changed_by_others(saved: SavedState, limiters: Limiters) -> float | None:
    """Return the present limit if it is neither the previous one nor the one that was set."""
    for limiter in limiters_for(saved.device, limiters).values():
        with contextlib.suppress(Exception):  # then it is restored
            now_w, known_w = limiter.read(saved.device).power_limit_w, saved.power_limit_w
            if now_w is None or known_w is None or saved.set_w is None:
                return None
            is_known = min(abs(now_w - known_w), abs(now_w - saved.set_w)) <= _SAME_SETTING_W
            return None if is_known else now_w
    return None
