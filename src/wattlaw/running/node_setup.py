"""What a machine needs before a run starts on it: limits and a rendezvous."""

import contextlib
import os
import sys
from collections.abc import Sequence

from wattlaw.common.errors import NotAvailable, WattlawError
from wattlaw.measure.devices.limiter import LimitState
from wattlaw.measure.limits.guard import LimitLease, acquire, lock_conflict
from wattlaw.measure.limits.requests import Limits, check_range
from wattlaw.measure.limits.restore import limiters_for, open_limiters, restore_stale
from wattlaw.measure.limits.state_folder import StateFolder
from wattlaw.running.training.environment import RENDEZVOUS_FILE, SHARING_WORKERS, THREADS
from wattlaw.store.record import RunRecord, now
from wattlaw.study.setting import Setting


def requested_limits(setting: Setting) -> Limits:
    return Limits(setting.power_limit_w, setting.clock_limit_mhz, setting.power_profile)


def thread_environment(threads: int) -> dict[str, str]:
    return {THREADS: str(threads), "MKL_NUM_THREADS": str(threads)}


def worker_environment(threads: int, sharing: int) -> dict[str, str]:
    """``sharing`` workers use the cores that these may use, those of other runs included."""
    own = {SHARING_WORKERS: str(sharing), "PYTHONUNBUFFERED": "1"}
    return thread_environment(threads) | own


def log_head(record: RunRecord) -> str:
    return f"\n== attempt {record.attempts}, {now():%Y-%m-%d %H:%M:%S} UTC\n"


def unsupported_limits_reason(
    limits: Limits, boards: Sequence[str], *, prior_clocks_are_default: bool
) -> str | None:
    if limits.are_none:
        return None
    if not boards:
        return "a power or clock limit or a power profile needs a GPU, and none is visible here"
    if limits.clock_limit_mhz is not None and not prior_clocks_are_default:
        return (
            "a clock limit could not be restored afterwards, because the present clock lock "
            "cannot be read; set launch.prior_clocks to default if the clocks are not locked"
        )
    return None


def limit_states(boards: Sequence[str]) -> list[LimitState]:
    states = []
    with open_limiters() as limiters:
        for board in boards:
            for limiter in [*limiters_for(board, limiters).values()][:1]:
                with contextlib.suppress(NotAvailable):
                    states.append(limiter.read(board))
    return states


def range_reason(limits: Limits, states: Sequence[LimitState], boards: Sequence[str]) -> str | None:
    reasons = []
    for state in states:
        try:
            check_range(state, limits, boards)
        except NotAvailable as error:
            reasons.append(str(error))
        else:
            return None
    return reasons[0] if reasons else f"{boards[0]}: nothing on this machine can limit it"


def permission_problem(boards: Sequence[str]) -> str | None:
    problems = dict[str, None]()
    with open_limiters() as limiters:
        for limiter in limiters_for(boards[0], limiters).values():
            try:
                problem = limiter.permission_problem(boards[0])
            except Exception:  # a limiter that is broken, or cannot tell
                problem = None
            if problem is None:
                return None
            problems.setdefault(problem)
    return "; ".join(problems) or None


def lease_boards(
    limits: Limits, boards: Sequence[str], *, prior_clocks_are_default: bool
) -> LimitLease:
    """Lock boards for limiting; ``NotAvailable`` if that can never work here, or now."""
    reason = unsupported_limits_reason(
        limits, boards, prior_clocks_are_default=prior_clocks_are_default
    )
    if reason is not None:
        raise NotAvailable(reason)
    lease = acquire(boards)
    if lease is None:
        raise NotAvailable(lock_conflict(boards))
    return lease


def restore_stale_limits() -> None:
    """Restore the limits that dead runs left here; print what was restored, and what cannot be."""
    try:
        outcomes, damaged = restore_stale(StateFolder())
    except WattlawError as error:
        print(f"wattlaw: {error}", file=sys.stderr)
        return
    for line in damaged:
        print(f"wattlaw: {line}", file=sys.stderr)
    for outcome in outcomes:
        if outcome.state == "restored":
            print(f"wattlaw: restored the limits of {outcome.saved.device}", file=sys.stderr)
        elif outcome.state == "not restored":
            print(f"wattlaw: {outcome.saved.device}: {outcome.reason}", file=sys.stderr)


class Rendezvous:
    """The file in which the ranks of one machine meet, until ``close`` or this process ends.

    A file, because torch's TCP store listens on every interface of the machine; in memory, because
    torch waits for ever if the disk of its file store is full.
    """

    def __init__(self) -> None:
        self._handle: int | None = os.memfd_create("ranks")
        #: Environment variables for the ranks.
        self.environment = {RENDEZVOUS_FILE: f"/proc/{os.getpid()}/fd/{self._handle}"}

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
