"""``devices``, ``limits`` and ``selftest``: what this machine can do, and how well."""

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from wattlaw.cli.console import Console
from wattlaw.devices import inventory
from wattlaw.devices.limiter import LimitState
from wattlaw.devices.nvidia.driver import visible_gpu_ids
from wattlaw.errors import BadInput, NotAvailable
from wattlaw.launch.limits import unsupported_limits_reason
from wattlaw.launch.selftest import run_checks
from wattlaw.limits.guard import acquire, lock_conflict
from wattlaw.limits.requests import Limits
from wattlaw.limits.restore import restore_stale
from wattlaw.limits.saved_state import SavedState
from wattlaw.limits.site.scripts import write_site_files
from wattlaw.limits.state_folder import StateFolder
from wattlaw.terminal import escaped_output


def devices(*, as_json: bool) -> int:
    """Show what can be measured and limited here, and why not."""
    meters, limiters = inventory.list_meters(), inventory.list_limiters()
    if as_json:
        told = {
            "meters": [dataclasses.asdict(meter) for meter in meters],
            "limiters": [dataclasses.asdict(limiter) for limiter in limiters],
        }
        print(json.dumps(told))
        return 0
    console = Console()
    table = _table("Measured", "meter", "kind", "device")
    for meter in meters:
        for device in meter.devices:
            facts = "\n".join(
                f"{name}: {value:.4g}" if isinstance(value, float) else f"{name}: {value}"
                for name, value in device.facts.items()
                if value not in (None, False)
            )
            about = f"{device.id}\n{device.name}\n{facts}".strip()
            table.add_row(meter.name, device.kind, about)
        for reason in filter(None, [meter.reason, *meter.problems]):
            table.add_row(meter.name, "-", reason)
    console.print(table)
    table = _table("Limited (as root, or by sudo)", "limiter", "device")
    for limiter in limiters:
        for state in limiter.devices:
            table.add_row(limiter.name, f"{state.device}\n{_ranges(state)}")
        if limiter.reason:
            table.add_row(limiter.name, limiter.reason)
    console.print(table)
    return 0


def limits_show(*, as_json: bool) -> int:
    """Show the limits of every device, and what is to be given back."""
    states = {s.device: s for found in inventory.list_limiters() for s in found.devices}
    folder = StateFolder()
    saved: dict[str, SavedState] = {}
    try:
        survey = folder.survey()
        for line in (*survey.damaged, *survey.ignored):
            print(f"wattlaw: {line}", file=sys.stderr)
        for one in sorted(survey.states, key=lambda one: not one.is_foreign):
            if one.device in states or not one.is_foreign:
                saved[one.device] = one
    except NotAvailable as error:  # the limits are shown all the same
        print(f"wattlaw: {error}", file=sys.stderr)
    devices = list(dict.fromkeys([*states, *saved]))
    holders_of = {
        d: folder.lock_owner(d) or "unknown" for d in devices if folder.is_locked_anywhere(d)
    }
    rows = [
        {
            **dataclasses.asdict(states.get(device) or LimitState(device, "not here")),
            "is_held": device in holders_of,
            "bottleneck": holders_of.get(device),
            "to_give_back": saved[device].model_dump(mode="json") if device in saved else None,
        }
        for device in devices
    ]
    if as_json:
        print(json.dumps(rows))
        return 0
    if not rows:
        print("Nothing here can be limited; 'wattlaw devices' says why.")
        return 0
    table = _table("Limits, in W", "device", "limit", "enforced", "default", "range", "held")
    for device in devices:
        state = states.get(device) or LimitState(device, "not here")
        table.add_row(
            device,
            _number(state.power_limit_w),
            _number(state.enforced_w),
            _number(state.default_w),
            _range(state.min_w, state.max_w),
            _held(saved.get(device), holders_of.get(device)),
        )
    Console().print(table)
    return 0


def limits_set(gpus: Sequence[str], limits: Limits, prior_clocks: str | None) -> int:
    """Limit boards until ``limits restore``."""
    if limits.are_none:
        raise BadInput("limits set: give --power-limit or --clock-limit")
    if prior_clocks not in (None, "default"):
        raise BadInput(f"limits set: --prior-clocks {prior_clocks!a}; allowed: default")
    boards = list(gpus) or visible_gpu_ids()
    refused = unsupported_limits_reason(
        limits, boards, prior_clocks_are_default=prior_clocks == "default"
    )
    if refused is not None:
        raise NotAvailable(refused)
    held = acquire(boards)
    if held is None:
        raise NotAvailable(lock_conflict(boards))
    with held:
        for one in held.apply(limits, kept=True):
            parts = []
            if one.power_limit_w is not None:
                before = _number(one.power_limit_before_w)
                parts.append(f"{_number(one.power_limit_enforced_w)} W (before: {before} W)")
            if one.clock_limit_mhz is not None:
                parts.append(f"clock locked at {one.clock_limit_mhz:g} MHz")
            print(f"{one.device}: {', '.join(parts)}; until 'wattlaw limits restore'")
    for found in inventory.list_limiters():
        for state in found.devices:
            if found.name == "nvidia" and state.device in boards and state.is_persistent is False:
                told = "persistence mode is off: the limit lasts while some process uses the GPU"
                print(f"wattlaw: {state.device}: {told}", file=sys.stderr)
    return 0


def limits_restore() -> int:
    """Give back whatever is to be given back."""
    found, survey = restore_stale(StateFolder(), include_kept=True)
    if not found:
        print("Nothing is to be given back.")
    for left in found:
        words = f": {left.reason}" if left.reason else ""
        who = f" (by {left.saved.user}, pid {left.saved.owner_pid})"
        print(f"{left.saved.device}: {left.state}{who if left.state == 'in use' else ''}{words}")
    for line in survey.ignored:
        print(f"wattlaw: {line}", file=sys.stderr)
    if survey.damaged:
        raise BadInput("; ".join(survey.damaged))
    return NotAvailable.exit_code if any(f.state == "not restored" for f in found) else 0


def selftest(*, as_json: bool) -> int:
    """Measure the measuring on this machine."""
    console = Console(stderr=True)
    message = "measuring the sampler and a training loop: about 40 s"
    with console.status(message), escaped_output():
        checks = run_checks()
    if as_json:
        print(json.dumps([dataclasses.asdict(check) for check in checks]))
        return 0
    table = Table("check", "value", "allowed", "verdict")
    colours = {"ok": "green", "poor": "red"}
    for check in checks:
        about = f"{check.check}, {check.device}" if check.device else check.check
        note = Text(f"\n{check.note}" if check.note else "", "dim")
        table.add_row(
            Text(about) + note,
            "-" if check.value is None else f"{check.value:.3g} {check.unit}",
            "-" if check.allowed is None else f"<= {check.allowed:g}",
            Text(check.verdict, colours.get(check.verdict, "yellow")),
        )
    Console().print(table)
    return 0


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for name in columns:
        table.add_column(name, overflow="fold")
    return table


def _ranges(state: LimitState) -> str:
    now = f"{state.name}: {_number(state.power_limit_w)} W"
    watts, clocks = _range(state.min_w, state.max_w), _range(state.min_mhz, state.max_mhz)
    return f"{now} of {watts} W; clocks {clocks} MHz"


def _held(saved: SavedState | None, holder: str | None) -> str:
    if saved is None:
        return f"in use by {holder}" if holder else "-"
    who = f"{saved.user}, pid {saved.owner_pid}; before: {_number(saved.power_limit_w)} W"
    if saved.kept:
        return f"set by {who}"
    return f"by {who}" if holder else f"left by {who}: wattlaw limits restore"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _range(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{low:g}-{high:g}"


def limits_site_files(folder: Path, python: str) -> int:
    """Write prolog, epilog and what belongs to them."""
    for path in write_site_files(folder, python):
        print(path)
    return 0
