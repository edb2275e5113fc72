"""Limits devices for a while and restores their previous limits, however the process ends.

The previous limits are on disk before anything is changed. They are restored when the lease is
released, or by the watchdog if this process dies first. If both are killed, a later start of
wattlaw or ``wattlaw limits restore`` restores them.
"""

import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from wattlaw.common.errors import NotAvailable, NotPermitted, WattlawError, one_line
from wattlaw.common.isolation import isolated_environment, isolated_python
from wattlaw.common.machine_lock import user_name
from wattlaw.measure.devices.limiter import Limiters, LimitState
from wattlaw.measure.limits.requests import (
    Limits,
    changes,
    check_range,
    report_applied_limits,
    state_to_save,
)
from wattlaw.measure.limits.restore import limiters_for, open_limiters, recover, restore
from wattlaw.measure.limits.state_folder import SavedState, StateFolder
from wattlaw.measure.limits.watchdog import DONE, RESTORE, WatchdogProcess
from wattlaw.store.record import LimitReport

RESTORE_HINT = "try 'wattlaw limits restore'"


@dataclass
class LimitLease:
    devices: tuple[str, ...]
    folder: StateFolder
    _locks: list[int]
    _saved: dict[str, SavedState] = field(default_factory=dict)
    #: The parts (power, clock, profile) of devices that were, or may have been, changed.
    _touched: set[tuple[str, str]] = field(default_factory=set)
    _watchdog: WatchdogProcess | None = None

    def apply(self, limits: Limits, *, kept: bool = False) -> tuple[LimitReport, ...]:
        """Limit every device of the lease, or none. Limits that are ``kept`` stay after this
        process ends, until ``wattlaw limits restore``. Raises ``NotPermitted`` if this user may not
        limit them, and ``NotAvailable`` if a limit is out of range, or a device does not answer."""
        if self._saved:
            raise ValueError("this lease has applied limits already")
        if limits.are_none:
            return ()
        with open_limiters() as limiters:
            for device in self.devices:
                if (saved := self.folder.read(device)) is not None:
                    self._recover(saved, limiters)
                check_range(_read(device, limiters), limits, self.devices)
            return self._apply(limits, limiters, kept=kept)

    def _apply(self, limits: Limits, limiters: Limiters, *, kept: bool) -> tuple[LimitReport, ...]:
        token = secrets.token_hex(8)
        owner = {"token": token, "owner_pid": os.getpid(), "user": user_name(os.geteuid())}
        states = {device: _read(device, limiters) for device in self.devices}
        try:
            if not kept:  # before any file is written, so that no file is without a watchdog
                line = isolated_python("-m", "wattlaw.measure.limits.watchdog")
                line += [str(self.folder.path.resolve()), token, str(os.getpid()), *self.devices]
                options = {"env": isolated_environment(), "pass_fds": tuple(self._locks)}
                self._watchdog = WatchdogProcess(line, **options)
            for device, state in states.items():
                self._saved[device] = state_to_save(state, limits, kept=kept, **owner)
                self.folder.write(self._saved[device])
            reports = [self._limit(states[device], limits, limiters) for device in self.devices]
        except BaseException:
            self._restore(limiters)
            raise
        if kept:
            self._saved.clear()  # this process restores nothing at its end
        return tuple(reports)

    def _limit(self, state: LimitState, limits: Limits, limiters: Limiters) -> LimitReport:
        device, name = state.device, ""
        usable = limiters_for(device, limiters)
        for part, change in changes(device, limits).items():
            reasons = []
            for name, limiter in usable.items():  # noqa: B007 - the last one is reported
                self._touched.add((device, part))
                try:
                    change(limiter)
                    break
                except NotPermitted as error:
                    self._touched.discard((device, part))
                    reasons.append(str(error))
            else:
                nothing = f"{device}: nothing on this machine can limit it"
                raise NotPermitted("; ".join(reasons) or nothing)
        return report_applied_limits(state, limits, name, limiters[name])

    def _recover(self, saved: SavedState, limiters: Limiters) -> None:
        device = saved.device
        if not saved.is_for_this_host:
            raise NotAvailable(
                f"{device}: {self.folder.path} has a saved limit of it from host {saved.host}"
            )
        if saved.kept and saved.is_from_this_boot:
            raise NotAvailable(f"{device}: limited by {saved.user} until 'wattlaw limits restore'")
        try:
            recover(self.folder, saved, limiters)
        except NotAvailable as error:
            owner = f"{saved.user}, pid {saved.owner_pid}"
            raise NotAvailable(f"{device}: was left limited by {owner}: {error}") from None

    def release(self) -> None:
        """Restore the previous limits and unlock the devices. Raises ``NotAvailable`` if a limit
        could not be restored: the watchdog keeps trying, and the previous limits stay on disk."""
        try:
            if self._saved:
                with open_limiters() as limiters:
                    self._restore(limiters)
        finally:
            self._saved.clear()  # the watchdog restores the rest
            if self._watchdog is not None:
                self._watchdog.end(RESTORE)
                self._watchdog = None
            while self._locks:
                os.close(self._locks.pop())

    def _restore(self, limiters: Limiters) -> None:
        reasons = []
        for device, saved in list(self._saved.items()):
            has_power, has_profile = ((device, p) in self._touched for p in ("power", "profile"))
            restored = {
                "power_limit_w": saved.power_limit_w if has_power else None,
                "unlock_clock": (device, "clock") in self._touched,
                "power_profiles": saved.power_profiles if has_profile else None,
            }
            try:
                restore(saved.model_copy(update=restored), limiters)
                self.folder.remove(device)
                del self._saved[device]
            except (WattlawError, OSError) as error:
                reasons.append(one_line(error))
        if reasons:
            raise NotAvailable("; ".join([*reasons, RESTORE_HINT]))
        if self._watchdog is not None:
            self._watchdog.end(DONE)
            self._watchdog = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def acquire(devices: Sequence[str], folder: StateFolder | None = None) -> LimitLease | None:
    """Lock devices for limiting, all or none; return None if another process has locked one."""
    folder = folder or StateFolder()
    folder.create()
    lease = LimitLease(tuple(dict.fromkeys(devices)), folder, [])
    try:
        for device in sorted(lease.devices):
            locks = folder.lock(device)
            if locks is None:
                lease.release()
                return None
            lease._locks += locks
    except BaseException:
        lease.release()
        raise
    return lease


def lock_conflict(devices: Sequence[str], folder: StateFolder | None = None) -> str:
    folder = folder or StateFolder()
    found = {device: folder.lock_owner(device) for device in devices}
    owners = ", ".join(f"{device}: {owner}" for device, owner in found.items() if owner)
    who = f" ({owners})" if owners else ""
    return f"another process has locked one of these GPUs{who}; see 'wattlaw limits show'"


def _read(device: str, limiters: Limiters) -> LimitState:
    for limiter in limiters_for(device, limiters).values():
        return limiter.read(device)
    raise NotAvailable(f"{device}: nothing on this machine can limit it")
