"""The guard: limits devices for a while and gives back what was there, whatever happens.

What was there is on disk before anything is changed. It is given back when the hold is released,
and by the watchdog when this process dies first; what survives even that, a later start or
``wattlaw limits restore`` gives back.
"""

import contextlib
import os
import secrets
import socket
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Self

from wattlaw.devices.limiter import Limiter, LimitState
from wattlaw.errors import NotAvailable, NotPermitted, WattlawError, one_line
from wattlaw.isolation import isolated_environment, isolated_python
from wattlaw.limits.requests import Limits, applied, check_range
from wattlaw.limits.restore import limiters, recover, restore, that_have
from wattlaw.limits.state_folder import SavedState, StateFolder, boot_id
from wattlaw.limits.trust import user_name
from wattlaw.limits.watchdog import DONE, READY, YOURS
from wattlaw.store.record import LimitReport

_WATCHDOG_START_S = 60


@dataclass
class LimitLease:
    """Devices that only this process may limit, until it is released.

    Also a context manager. Make one with :func:`hold`.
    """

    devices: tuple[str, ...]
    folder: StateFolder
    _locks: list[int]
    _saved: dict[str, SavedState] = field(default_factory=dict)
    #: The parts (power, clock) of devices that were, or may have been, changed.
    _touched: set[tuple[str, str]] = field(default_factory=set)
    _watchdog: "_Watchdog | None" = None

    def apply(self, limits: Limits, *, kept: bool = False) -> tuple[LimitReport, ...]:
        """Limit every device of the acquire, or none of them.

        Parameters
        ----------
        limits
            What to set.
        kept
            Set it to stay when this process ends, until it is given back by hand.

        Raises
        ------
        NotPermitted
            Nobody lets this user limit them.
        NotAvailable
            A limit is outside a device's range, or a device does not answer.
        """
        if self._saved:
            raise ValueError("this hold has applied limits already")
        if limits.are_none:
            return ()
        with limiters() as known:
            for device in self.devices:
                self._recover(device, known)
                check_range(_state(device, known), limits)
            return self._apply(limits, known, kept=kept)

    def _apply(
        self, limits: Limits, known: dict[str, Limiter], *, kept: bool
    ) -> tuple[LimitReport, ...]:
        token = secrets.token_hex(8)
        states = {device: _state(device, known) for device in self.devices}
        try:
            if not kept:  # first of all, so that no file is ever left without one
                self._watchdog = _Watchdog(self.folder, token, self.devices, self._locks)
            for device, state in states.items():
                saved = _saved(state, limits, token, kept=kept)
                self._saved[device] = saved
                self.folder.write(saved)
            applied = [self._limit(states[device], limits, known) for device in self.devices]
        except BaseException:
            self._restore(known)
            raise
        if kept:
            self._saved.clear()  # nothing is given back at the end of this process
        return tuple(applied)

    def _limit(self, state: LimitState, limits: Limits, known: dict[str, Limiter]) -> LimitReport:
        """Limit one device, its power and its clock each by the first limiter that may."""
        device, watts, mhz = state.device, limits.power_limit_w, limits.clock_limit_mhz
        ways, name = that_have(device, known), ""
        if watts is not None:
            name = self._by_the_first(
                ways, device, "power", lambda w: w.set_power_limit(device, watts)
            )
        if mhz is not None:
            name = self._by_the_first(ways, device, "clock", lambda w: w.lock_clock(device, mhz))
        return applied(state, limits, name, known[name])

    def _by_the_first(
        self, ways: dict[str, Limiter], device: str, part: str, change: Callable[[Limiter], None]
    ) -> str:
        """Change a part of a device by the first limiter that is permitted to; return its name."""
        reasons = []
        for name, limiter in ways.items():
            self._touched.add((device, part))
            try:
                change(limiter)
            except NotPermitted as error:
                self._touched.discard((device, part))
                reasons.append(str(error))
            else:
                return name
        raise NotPermitted("; ".join(reasons) or f"{device}: nothing here can limit it")

    def _recover(self, device: str, known: dict[str, Limiter]) -> None:
        for left in self.folder.states(device):
            self._recover_state(device, left, known)

    def _recover_state(self, device: str, left: SavedState, known: dict[str, Limiter]) -> None:
        if left.is_foreign and not left.is_in_use:
            return  # anybody can write it; what it is about stays as it is before our run
        if not left.is_of_this_host:
            told = f"{device}: {self.folder.path} says that it is limited on {left.host}"
            raise NotAvailable(told)
        if left.is_in_use:
            raise NotAvailable(f"{device}: is in use by {left.user}, pid {left.owner_pid}")
        if not (left.is_of_this_boot or left.is_ours):
            return  # the limit is gone since the boot, and root forgets the file
        if left.kept and left.is_of_this_boot:
            told = f"{device}: limited by {left.user} until 'wattlaw limits restore'"
            raise NotAvailable(told)
        try:
            recover(self.folder, left, known)
        except NotPermitted:
            raise
        except NotAvailable as error:
            told = f"{device}: was left limited by {left.user}, pid {left.owner_pid}: {error}"
            raise NotAvailable(told) from None

    def release(self) -> None:
        """Give back what was there, and let the devices go; more than once is harmless.

        Raises
        ------
        NotAvailable
            Something could not be given back. The watchdog goes on trying; what is to be given
            back stays on disk.
        """
        try:
            if self._saved:
                with limiters() as known:
                    self._restore(known)
        finally:
            self._saved.clear()  # what is left of it is the watchdog's from here on
            if self._watchdog is not None:
                self._watchdog.leave()
                self._watchdog = None
            while self._locks:
                os.close(self._locks.pop())

    def _restore(self, known: dict[str, Limiter]) -> None:
        reasons = []
        for device, saved in list(self._saved.items()):
            changed = {
                "power_limit_w": saved.power_limit_w
                if (device, "power") in self._touched
                else None,
                "unlock_clock": (device, "clock") in self._touched,
            }
            try:
                restore(saved.model_copy(update=changed), known)
                self.folder.remove(device)
                del self._saved[device]
            except (WattlawError, OSError) as error:
                reasons.append(one_line(error))
        if reasons:
            raise NotAvailable("; ".join(reasons) + "; try 'wattlaw limits restore'")
        if self._watchdog is not None:
            self._watchdog.dismiss()
            self._watchdog = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def acquire(devices: Sequence[str], folder: StateFolder | None = None) -> LimitLease | None:
    """Take the right to limit devices, all or none; None while another process has one of them.

    Raises
    ------
    NotAvailable
        The folder for what is to be given back cannot be used.
    """
    place = folder or StateFolder()
    place.create()
    held = LimitLease(tuple(dict.fromkeys(devices)), place, [])
    try:
        for device in sorted(held.devices):
            lock = place.lock(device)
            if lock is None:
                held.release()
                return None
            held._locks.append(lock)
    except BaseException:
        held.release()
        raise
    return held


def lock_conflict(devices: Sequence[str], folder: StateFolder | None = None) -> str:
    """Say, for a message, that others limit devices, and who as far as the system tells it."""
    place = folder or StateFolder()
    held = [device for device in dict.fromkeys(devices) if place.is_held(device)]
    who = [f"{device}: {place.holder(device) or 'unknown'}" for device in held]
    told = f" ({', '.join(who)})" if who else ""
    return f"another process has locked one of these GPUs{told}; see 'wattlaw limits show'"


class _Watchdog:
    """The process that gives back when this one is gone."""

    def __init__(
        self, folder: StateFolder, token: str, devices: Sequence[str], locks: Sequence[int]
    ) -> None:
        line = isolated_python("-m", "wattlaw.limits.watchdog")
        line += [str(folder.path.resolve()), token, str(os.getpid()), *devices]
        process = subprocess.Popen(
            line,
            env=isolated_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=tuple(locks),
        )
        if process.stdin is None or process.stdout is None:
            raise AssertionError("pipes were asked for")
        self._to, self._from = process.stdin, process.stdout
        said = self._from.readline()
        process.wait(_WATCHDOG_START_S)  # it has forked; the one that stays is not our child
        if said != READY:
            raise NotAvailable("the watchdog of the limits could not be started; see above")

    def dismiss(self) -> None:
        """Tell it that all is given back, and wait until it has let the locks go."""
        with contextlib.suppress(OSError):
            self._to.write(DONE)
            self._to.flush()
        self._from.read()
        self.leave()

    def leave(self) -> None:
        """Leave it to give back what is still to be given back."""
        with contextlib.suppress(OSError, ValueError):
            self._to.write(YOURS)
            self._to.flush()
        for pipe in (self._to, self._from):
            with contextlib.suppress(OSError):
                pipe.close()


def _state(device: str, known: dict[str, Limiter]) -> LimitState:
    for limiter in that_have(device, known).values():
        return limiter.read(device)
    raise NotAvailable(f"{device}: nothing here can limit it")


def _saved(state: LimitState, limits: Limits, token: str, *, kept: bool) -> SavedState:
    return SavedState(
        device=state.device,
        host=socket.gethostname(),
        set_w=limits.power_limit_w,
        power_limit_w=state.power_limit_w if limits.power_limit_w is not None else None,
        unlock_clock=limits.clock_limit_mhz is not None,
        token=token,
        owner_pid=os.getpid(),
        user=user_name(os.geteuid()),
        made_at=datetime.now(UTC),
        boot_id=boot_id(),
        kept=kept,
    )
