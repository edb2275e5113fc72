"""``wattlaw limits``."""

import dataclasses
import json
from typing import Annotated

import typer

from wattlaw.cli.common import options as opts
from wattlaw.cli.common.console import Console, make_table
from wattlaw.common.errors import BadInput, NotAvailable
from wattlaw.common.formatting import interval, number, power_limit_text
from wattlaw.common.terminal import print_note
from wattlaw.measure.devices import inventory
from wattlaw.measure.devices.inventory import visible_gpu_ids
from wattlaw.measure.devices.limiter import LimitState
from wattlaw.measure.limits.requests import Limits
from wattlaw.measure.limits.restore import restore_stale
from wattlaw.measure.limits.state_folder import SavedState, StateFolder
from wattlaw.running.node_setup import lease_boards

app = typer.Typer(help="Show, set and restore power limits and clock locks.")


@app.command("show")
def limits_show(as_json: opts.JsonOption = False) -> int:
    """Show the present and the prior limits of each device."""
    states = {s.device: s for limiter in inventory.list_limiters() for s in limiter.devices}
    folder = StateFolder()
    saved: dict[str, SavedState] = {}
    try:
        left, damaged = folder.survey()
        for line in damaged:
            print_note(line)
        saved = {state.device: state for state in left}
    except NotAvailable as error:  # show the limits anyway
        print_note(str(error))
    devices = list(dict.fromkeys([*states, *saved]))
    users = {device: owner for device in devices if (owner := folder.lock_owner(device))}
    rows = [
        {
            **dataclasses.asdict(states.get(device) or LimitState(device, "not available")),
            "is_in_use": device in users,
            "in_use_by": users.get(device),
            "to_restore": saved[device].model_dump(mode="json") if device in saved else None,
        }
        for device in devices
    ]
    if as_json:
        print(json.dumps(rows))
        return 0
    if not rows:
        print("No device on this machine can be limited. 'wattlaw devices' shows the reasons.")
        return 0
    cells = [
        (
            str(row["device"]),
            power_limit_text(row["power_limit_w"]).removesuffix(" W"),
            *(number(row[name], 9) for name in ("enforced_w", "default_w")),
            interval(row["min_w"], row["max_w"], 9),
            _use(saved.get(device), users.get(device)),
        )
        for device, row in zip(devices, rows, strict=True)
    ]
    columns = ("device", "limit", "enforced", "default", "range", "use")
    Console().print(make_table(columns, cells, title="Power limits in W"))
    return 0


@app.command("set")
def limits_set(
    power_limit: opts.PowerOption = None,
    clock_limit: opts.ClockOption = None,
    power_profile: opts.ProfileOption = None,
    prior_clocks: opts.PriorClocksOption = None,
    gpu: Annotated[
        list[str] | None,
        opts.option("UUID", "GPU to limit. Can be repeated. Default: all visible."),
    ] = None,
) -> int:
    """Set limits that stay until 'wattlaw limits restore'."""
    limits = Limits(power_limit, clock_limit, power_profile)
    if limits.are_none:
        raise BadInput("limits set: --power-limit, --clock-limit or --power-profile is required")
    boards = gpu or visible_gpu_ids()
    with lease_boards(limits, boards, prior_clocks_are_default=prior_clocks == "default") as lease:
        for report in lease.apply(limits, kept=True):
            parts = []
            if report.power_limit_w is not None:
                enforced = number(report.power_limit_enforced_w, 9)
                before = power_limit_text(report.power_limit_before_w)
                parts.append(f"{enforced} W (before: {before})")
            if report.clock_limit_mhz is not None:
                parts.append(f"clock locked at {report.clock_limit_mhz:g} MHz")
            if report.power_profile is not None:
                parts.append(f"power profile {report.power_profile}")
            print(f"{report.device}: {', '.join(parts)}, until 'wattlaw limits restore'")
    for limiter in inventory.list_limiters():
        for state in limiter.devices:
            if limiter.name == "nvidia" and state.device in boards and state.is_persistent is False:
                print_note(
                    f"{state.device}: persistence mode is off; the limit is lost when no "
                    "process uses the GPU"
                )
    return 0


@app.command("restore")
def limits_restore() -> int:
    """Restore the limits from before wattlaw changed them."""
    results, damaged = restore_stale(StateFolder(), include_kept=True)
    if not results:
        print("There are no limits to restore.")
    for result in results:
        saved = result.saved
        user = f" (by {saved.user}, pid {saved.owner_pid})" if result.state == "in use" else ""
        reason = f": {result.reason}" if result.reason else ""
        print(f"{saved.device}: {result.state}{user}{reason}")
    if damaged:
        raise BadInput("; ".join(damaged))
    failed = any(result.state == "not restored" for result in results)
    return NotAvailable.exit_code if failed else 0


def _use(saved: SavedState | None, user: str | None) -> str:
    if saved is None:
        return f"in use by {user}" if user else "-"
    owner = f"{saved.user}, pid {saved.owner_pid}; before: {power_limit_text(saved.power_limit_w)}"
    if saved.kept:
        return f"set by {owner}"
    return f"in use by {owner}" if user else f"left by {owner}; run 'wattlaw limits restore'"
