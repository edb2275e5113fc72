"""What root does on a node when a job begins and ends: limits its boards, and gives back.

As the guard does, what was there is on disk before anything is changed, and a watchdog stands by.
The owner is the job, not a process.
"""

import secrets
import socket
from collections.abc import Sequence
from datetime import UTC, datetime

from wattlaw.devices.limiter import Limiter, LimitState
from wattlaw.errors import BadInput, NotAvailable, WattlawError, one_line
from wattlaw.limits.requests import Limits, applied, check_range
from wattlaw.limits.site.boards import job_boards
from wattlaw.limits.site.file import SiteFile
from wattlaw.limits.site.job import Job, Place, is_over, mentions, tell
from wattlaw.limits.site.request import requested
from wattlaw.limits.site.state import (
    SiteReport,
    SiteStates,
    boards_here,
    is_for,
    remove_report,
    write_report,
)
from wattlaw.limits.site.watch import Watchdog
from wattlaw.limits.state_folder import SavedState, boot_id
from wattlaw.store.record import LimitReport


def prolog(place: Place, job: Job, comment: str) -> None:
    """Give back what jobs have left, and limit a job's boards if it asks for that.

    What cannot be done is told, to the job in its report and to the administrators. Nothing is
    raised for it: the job is not to blame, and a failing prolog drains the node.
    """
    remove_report(place, job.job_id, job.node)
    try:
        _restore_stale_limits(place, job)
    except WattlawError as error:
        tell(f"job {job.job_id}: {error}")
    if not mentions(comment):
        return
    limits = Limits()
    try:
        limits = requested(comment)
        _grant(place, job, limits)
    except (WattlawError, OSError) as error:
        reason = one_line(error)
        tell(f"job {job.job_id} of {job.user}: its limit is refused: {reason}")
        _report(place, job, limits, refused=reason)


def _report(
    place: Place,
    job: Job,
    limits: Limits,
    done: Sequence[LimitReport] = (),
    refused: str | None = None,
) -> None:
    write_report(
        place,
        SiteReport(
            job_id=job.job_id,
            node=job.node,
            power_limit_w=limits.power_limit_w,
            clock_limit_mhz=limits.clock_limit_mhz,
            refused=refused,
            limits=tuple(done),
        ),
    )


def _restore_stale_limits(place: Place, job: Job) -> None:
    """Give back what earlier starts of this job, and jobs that are not here any more, have left."""
    folder = SiteStates(place)
    own, left = [], []
    for saved in folder.here():
        if is_for(saved, job):
            own.append(saved)
        elif _is_left(saved, job):
            left.append(saved)
    _restore_all(folder, own, is_stale=False)
    _restore_all(folder, left, is_stale=True)


def _is_over(saved: SavedState) -> bool | None:
    """Say whether the job of a saved state has left this node; None if nobody tells."""
    return not saved.is_of_this_boot or is_over(saved.job_id or "", saved.node or "")


def _is_left(saved: SavedState, job: Job) -> bool:
    over = _is_over(saved)
    if over is not None:
        return over
    try:  # the controller does not answer, but Slurm has given this job that board
        return saved.device in job_boards(job.gpus)
    except NotAvailable:
        return False


def _restore_all(folder: SiteStates, found: Sequence[SavedState], *, is_stale: bool) -> None:
    """Give back all, or raise ``NotAvailable`` with why some could not be."""
    if not found:
        return
    reasons = []
    with boards_here() as known:
        for one in found:
            try:
                folder.restore(one.device, known, one.token, is_stale=is_stale)
                tell(f"gave back the limits of {one.device}, of job {one.job_id}", is_wrong=False)
            except (WattlawError, OSError) as error:
                reasons.append(f"{one_line(error)} (of job {one.job_id})")
    if reasons:
        raise NotAvailable("; ".join(reasons))


def _grant(place: Place, job: Job, limits: Limits) -> None:
    """Limit all of a job's boards, or none."""
    try:
        site = SiteFile.read(place.config)
    except BadInput as error:  # what is in it may be root's to know
        tell(str(error))
        raise NotAvailable("this node's site file has an error; its log says which") from None
    site.check(limits)
    site.check_person(job.user, job.account() if site.accounts else "")
    folder = SiteStates(place)
    folder.create()
    devices = job_boards(job.gpus)
    with boards_here() as known, folder.held(devices):
        limiter = known.get("nvidia")
        if limiter is None:
            raise NotAvailable("the NVIDIA driver does not answer")
        states = [limiter.read(device) for device in devices]
        for state in states:
            check_range(state, limits)
            left = folder.read(state.device)
            if left is not None:
                told = f"{state.device} is limited for job {left.job_id}"
                raise NotAvailable(f"{told}, and has not been given back")
        token = secrets.token_hex(8)
        watchdog = Watchdog(place, job, token, devices, site.grace_s)  # first, as in the guard
        try:
            done = [_limit(folder, job, token, s, limits, limiter) for s in states]
            _report(place, job, limits, done)
        except BaseException:
            _undo(folder, devices, token, known)
            raise
        finally:
            watchdog.leave()


def _limit(
    folder: SiteStates, job: Job, token: str, state: LimitState, limits: Limits, limiter: Limiter
) -> LimitReport:
    folder.write(
        SavedState(
            device=state.device,
            host=socket.gethostname(),
            power_limit_w=state.power_limit_w if limits.power_limit_w is not None else None,
            set_w=limits.power_limit_w,
            unlock_clock=limits.clock_limit_mhz is not None,
            token=token,
            owner_pid=0,
            user=job.user,
            made_at=datetime.now(UTC),
            boot_id=boot_id(),
            job_id=job.job_id,
            node=job.node,
        )
    )
    if limits.power_limit_w is not None:
        limiter.set_power_limit(state.device, limits.power_limit_w)
    if limits.clock_limit_mhz is not None:
        limiter.lock_clock(state.device, limits.clock_limit_mhz)
    return applied(state, limits, "nvidia", limiter)


def _undo(
    folder: SiteStates, devices: Sequence[str], token: str, known: dict[str, Limiter]
) -> None:
    """Give back what was limited before something failed; what cannot be is the epilog's."""
    for device in devices:
        try:
            folder.restore_locked(device, known, token)
        except (WattlawError, OSError) as error:
            tell(one_line(error))


def epilog(place: Place, job: Job) -> None:
    """Give back what a job's boards had before it.

    Raises
    ------
    NotAvailable
        Something could not be given back. It stays on disk, and the node should take no job.
    """
    folder = SiteStates(place)
    try:
        _restore_all(folder, [s for s in folder.here() if is_for(s, job)], is_stale=False)
        if damaged := folder.damaged():
            raise NotAvailable("; ".join(damaged))
    finally:
        remove_report(place, job.job_id, job.node)


def restore(place: Place, *, also_running: bool) -> None:
    """Give back for all jobs that are not on this node any more, or for all.

    Raises
    ------
    NotAvailable
        Something could not be given back, or Slurm does not tell whether its job is over.
    """
    folder = SiteStates(place)
    left, unknown = [], []
    for saved in folder.here():
        over = also_running or _is_over(saved)
        if over is None:
            unknown.append(saved)
        elif over:
            left.append(saved)
    reasons = []
    try:
        _restore_all(folder, left, is_stale=True)
    except NotAvailable as error:
        reasons.append(str(error))
    for saved in left:
        remove_report(place, saved.job_id or "", saved.node or "")
    told = "Slurm does not tell whether it is over; 'restore --all' gives back"
    reasons += [f"{saved.device}: job {saved.job_id}: {told}" for saved in unknown]
    reasons += folder.damaged()
    if reasons:
        raise NotAvailable("; ".join(reasons))


def show(place: Place) -> list[str]:
    """Return a line for each limited board of this node."""
    lines = []
    words = {True: "over", False: "here", None: "unknown to Slurm"}
    for saved in SiteStates(place).here():
        before = [] if saved.power_limit_w is None else [f"{saved.power_limit_w:g} W"]
        before += ["no clock lock"] if saved.unlock_clock else []
        job = f"job {saved.job_id} of {saved.user} on {saved.node}"
        is_here = words[_is_over(saved)]
        lines.append(f"{saved.device}: limited for {job}, {is_here}; before: {', '.join(before)}")
    return lines
