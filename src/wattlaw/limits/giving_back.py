"""Gives a device back what it had, from its saved state."""

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from wattlaw import registry
from wattlaw.devices.limiter import GROUP, Limiter
from wattlaw.devices.nvidia.limiter import UNLOCK_OPTIONS, set_power_options, sudo_lets
from wattlaw.errors import BadInput, NotAvailable, NotPermitted, WattlawError, one_line
from wattlaw.limits.saved import Saved, SaveFolder, Survey
from wattlaw.store.files import remove_abandoned

State = Literal["given back", "in use", "kept", "elsewhere", "not given back", "another user's"]

#: A limit read back is as asked for within what drivers round to.
SAME_W = 0.5
#: A limit so near to what was set is that one; nobody's change is so small.
_OURS_W = 2.0
#: What the driver refused to change is as before to the milliwatt.
_UNCHANGED_W = 0.001


@contextmanager
def limiters() -> Iterator[dict[str, Limiter]]:
    """Open every limiter that this machine has, by name in the order of trying.

    One that cannot be opened, for whatever reason, must not keep the others from giving back.
    """
    found: dict[str, Limiter] = {}
    try:
        for name in registry.names(GROUP):
            with contextlib.suppress(Exception):
                found[name] = registry.load(GROUP, name).open()
        yield found
    finally:
        for limiter in found.values():
            with contextlib.suppress(Exception):
                limiter.close()


def that_have(device: str, known: dict[str, Limiter]) -> dict[str, Limiter]:
    """Return the limiters that can reach a device."""
    found = {}
    for name, limiter in known.items():
        with contextlib.suppress(Exception):  # as above
            if device in limiter.devices():
                found[name] = limiter
    return found


def give_back(saved: Saved, known: dict[str, Limiter]) -> None:
    """Set a device to its saved state by the first limiter that can, and check it.

    Raises
    ------
    NotAvailable
        No limiter could give back the power limit, or the clock; the text says why. What could
        be given back is.
    """
    ways = list(that_have(saved.device, known).values())
    reasons = []
    if saved.power_limit_w is not None:
        reasons += _by_the_first(ways, _set_power_back, saved)
        if reasons and ways and all(_is_unchanged(limiter, saved) for limiter in ways):
            reasons = []  # what nobody may set back, nobody has changed
    if saved.unlock_clock:
        reasons += _by_the_first(ways, _unlock, saved)
    if reasons:
        raise NotAvailable(f"not given back: {'; '.join(reasons)}")


def _by_the_first(
    ways: list[Limiter], part: Callable[[Limiter, Saved], None], saved: Saved
) -> list[str]:
    """Do a part of giving back; return why nobody could, or nothing."""
    reasons = [] if ways else [f"{saved.device}: nothing here can limit it"]
    for limiter in ways:
        try:
            part(limiter, saved)
        except Exception as error:  # a broken limiter must not keep the next from trying
            reasons.append(one_line(error))
        else:
            return []
    return reasons


def _set_power_back(limiter: Limiter, saved: Saved) -> None:
    before_w = saved.power_limit_w
    if before_w is None:
        return
    limiter.set_power_limit(saved.device, before_w)
    found_w = limiter.read(saved.device).power_limit_w
    if found_w is None or abs(found_w - before_w) > SAME_W:
        raise NotAvailable(f"{saved.device}: reads {found_w} W after {before_w:g} W was set")


def _unlock(limiter: Limiter, saved: Saved) -> None:
    limiter.unlock_clock(saved.device)


def _is_unchanged(limiter: Limiter, saved: Saved) -> bool:
    try:
        found_w = limiter.read(saved.device).power_limit_w
    except Exception:  # it does not answer, so it does not say so
        return False
    before_w = saved.power_limit_w
    return found_w is not None and before_w is not None and abs(found_w - before_w) < _UNCHANGED_W


@dataclass(frozen=True)
class Left:
    """A limit found on disk, and what became of it."""

    saved: Saved
    state: State
    reason: str | None = None


def recover_all(folder: SaveFolder, *, also_kept: bool = False) -> list[Left]:
    """Give back what dead owners left behind; with ``also_kept`` what was set by hand, too.

    With ``also_kept`` root gives back for other users, too, if sudo lets them set limits.

    Raises
    ------
    BadInput
        A saved state of ours or of root's cannot be understood. All others have been dealt with.
    NotAvailable
        Anybody could have replaced what is saved there.
    """
    left, survey = recover_each(folder, also_kept=also_kept)
    if survey.damaged:
        raise BadInput("; ".join(survey.damaged))
    return left


def recover_each(folder: SaveFolder, *, also_kept: bool = False) -> tuple[list[Left], Survey]:
    """Do as ``recover_all``; return also what cannot be understood."""
    survey = folder.survey()
    remove_abandoned(folder.path)  # what killed writers have left
    if not survey.states:
        return [], survey
    left = []
    with limiters() as known:
        seen: set[tuple[str, str]] = set()
        for saved in survey.states:
            if saved.is_foreign:  # one for each user and board: anybody can write a thousand
                if (saved.user, saved.device) in seen or not that_have(saved.device, known):
                    continue
                seen.add((saved.user, saved.device))
            left.append(_recovered(folder, saved, known, also_kept=also_kept))
    return left, survey


class _Changed(NotPermitted):
    """Another user has rewritten a state since it was decided to act on it."""


def _recovered(
    folder: SaveFolder, saved: Saved, known: dict[str, Limiter], *, also_kept: bool
) -> Left:
    lock: int | None = None
    try:
        reason = _not_believed(saved, known, also_kept=also_kept) if saved.is_foreign else None
        if reason is not None and not (saved.is_in_use or folder.is_held(saved.device)):
            return Left(saved, "another user's", reason)
        lock = None if reason is not None else folder.lock(saved.device)
        if lock is None:
            return Left(saved, "in use")
        present = folder.read_again(saved)  # now nobody else changes it
        if saved.is_foreign and present not in (None, saved):  # sudo was asked about the old one
            raise _Changed(f"the file of {saved.user} has changed meanwhile")
        if present is None:
            return Left(saved, "given back")
        if (state := _not_to_be_touched(present, also_kept=also_kept)) is not None:
            return Left(present, state)
        recover(folder, present, known, on_request=also_kept)
    except (WattlawError, OSError) as error:
        state = "another user's" if isinstance(error, _Changed) else "not given back"
        return Left(saved, state, one_line(error))
    finally:
        if lock is not None:
            os.close(lock)
    return Left(saved, "given back")


def _not_believed(saved: Saved, known: dict[str, Limiter], *, also_kept: bool) -> str | None:
    """Return why another user's state is left alone, None if root may act on it."""
    if not (also_kept and os.geteuid() == 0):
        told = f"{saved.user}, or root, must run 'wattlaw limits restore'"
        return f"was limited by {saved.user}: {told}"
    if not _sudo_lets(saved, known):
        return f"{saved.user} may not set limits by sudo, so the file of {saved.user} is not used"
    return None


def _sudo_lets(saved: Saved, known: dict[str, Limiter]) -> bool:
    """Say whether the user who wrote a state may make the changes that would give it back."""
    if not that_have(saved.device, known):
        return False
    changes = [] if saved.power_limit_w is None else [set_power_options(saved.power_limit_w)]
    changes += [UNLOCK_OPTIONS] if saved.unlock_clock else []
    return all(sudo_lets(saved.user, saved.device, *options) for options in changes)


def _not_to_be_touched(saved: Saved, *, also_kept: bool) -> State | None:
    """Return why a saved state is not to be given back now, or None."""
    if not saved.is_of_this_host:
        return "elsewhere"
    if saved.is_in_use:
        return "in use"
    return "kept" if saved.kept and not also_kept and saved.is_of_this_boot else None


def recover(
    folder: SaveFolder, saved: Saved, known: dict[str, Limiter], *, on_request: bool = False
) -> None:
    """Give back what a dead owner left behind, and forget it; the caller holds the lock.

    Parameters
    ----------
    on_request
        The user has asked for it: root then gives back for others, too.

    Raises
    ------
    NotPermitted
        It is another user's to give back.
    NotAvailable
        It could not be given back, or somebody else has changed the limit since.
    """
    if not saved.is_ours and not (on_request and os.geteuid() == 0):
        told = f"{saved.user}, or root, must run 'wattlaw limits restore'"
        raise NotPermitted(f"{saved.device}: {told}")
    now_w = None
    if saved.is_of_this_boot:
        now_w = _changed_by_others(saved, known)
        if now_w is not None:
            saved = saved.model_copy(update={"power_limit_w": None})
        give_back(saved, known)
    folder.forget(saved)
    if now_w is not None:
        raise NotAvailable(f"{saved.device}: somebody has set {now_w:g} W since; it stays")


def _changed_by_others(saved: Saved, known: dict[str, Limiter]) -> float | None:
    """Return the present limit where it is neither what was there nor what was set."""
    for limiter in that_have(saved.device, known).values():
        with contextlib.suppress(Exception):  # then it is given back
            now_w = limiter.read(saved.device).power_limit_w
            ours = (saved.power_limit_w, saved.set_w)
            if now_w is None or any(w is None or abs(now_w - w) <= _OURS_W for w in ours):
                return None
            return now_w
    return None
