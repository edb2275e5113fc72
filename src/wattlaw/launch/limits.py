"""Limits around a run: when they cannot be, and what earlier ones have left."""

import sys
from collections.abc import Sequence

from wattlaw.errors import WattlawError
from wattlaw.limits.requests import Limits
from wattlaw.limits.restore import restore_stale
from wattlaw.limits.state_folder import StateFolder
from wattlaw.study.model import Setting


def requested_limits(setting: Setting) -> Limits:
    """Return what a setting asks to be limited."""
    return Limits(setting.power_limit_w, setting.clock_limit_mhz)


def unsupported_limits_reason(
    limits: Limits, boards: Sequence[str], *, prior_clocks_are_default: bool
) -> str | None:
    """Return why limits can never be set here, as far as it can be told without trying."""
    if limits.are_none:
        return None
    if not boards:
        return "asks for a power or clock limit; no GPU here is ours to limit"
    if limits.clock_limit_mhz is not None and not prior_clocks_are_default:
        return (
            "asks for a clock limit, and a clock lock that is there already cannot be read, and so "
            "not be given back; state 'prior_clocks: default' (launch) if none is"
        )
    return None


def restore_stale_limits() -> None:
    """Give back, and tell, what runs that died have left limited on this machine.

    What is wrong with the folder is told, and stops nobody who limits nothing.
    """
    try:
        found, survey = restore_stale(StateFolder())
    except WattlawError as error:
        print(f"wattlaw: {error}", file=sys.stderr)
        return
    for line in (*survey.damaged, *survey.ignored):
        print(f"wattlaw: {line}", file=sys.stderr)
    for left in found:
        if left.state == "given back":
            print(f"wattlaw: gave back the limits of {left.saved.device}", file=sys.stderr)
        elif left.state in ("not given back", "another user's"):
            print(f"wattlaw: {left.saved.device}: {left.reason}", file=sys.stderr)
