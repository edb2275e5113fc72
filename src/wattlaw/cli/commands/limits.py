"""``wattlaw limits``: show, set and restore power limits and clock locks."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from wattlaw.cli.common.console import Console
from wattlaw.cli.common.formatting import range_or_dash, titled_table, value_or_dash
from wattlaw.cli.common.options import ClockOption, JsonOption, PowerOption, PriorClocksOption
from wattlaw.devices import inventory
from wattlaw.devices.limiter import LimitState
from wattlaw.devices.nvidia.driver import visible_gpu_ids
from wattlaw.errors import BadInput, NotAvailable
from wattlaw.launch.limits import refusal
from wattlaw.limits.guard import acquire, lock_conflict
from wattlaw.limits.requests import Limits
from wattlaw.limits.restore import restore_stale
from wattlaw.limits.site.scripts import write_site_files
from wattlaw.limits.state_folder import SavedState, StateFolder

app = typer.Typer()
limits_app = typer.Typer(help="Show, set and restore power limits and clock locks.")
app.add_typer(limits_app, name="limits")


@limits_app.command("show")
def limits_show(as_json: JsonOption = False) -> int:
    """Show the limits of each device, and the original limits to restore."""
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
    holders_of = {d: folder.holder(d) or "unknown" for d in devices if folder.is_held(d)}
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
    table = titled_table("Limits, in W", "device", "limit", "enforced", "default", "range", "held")
    for device in devices:
        state = states.get(device) or LimitState(device, "not here")
        table.add_row(
            device,
            value_or_dash(state.power_limit_w),
            value_or_dash(state.enforced_w),
            value_or_dash(state.default_w),
            range_or_dash(state.min_w, state.max_w),
            _held(saved.get(device), holders_of.get(device)),
        )
    Console().print(table)
    return 0


@limits_app.command("set")
def limits_set(
    power_limit: PowerOption = None,
    clock_limit: ClockOption = None,
    prior_clocks: PriorClocksOption = None,
    gpu: Annotated[
        list[str] | None,
        typer.Option(metavar="UUID", help="GPU to limit. Can be repeated. Default: all visible."),
    ] = None,
) -> int:
    """Set limits that stay until 'wattlaw limits restore'."""
    limits = Limits(power_limit, clock_limit)
    if limits.are_none:
        raise BadInput("limits set: --power-limit or --clock-limit is required")
    boards = gpu or visible_gpu_ids()
    refused = refusal(limits, boards, prior_clocks_are_default=prior_clocks == "default")
    if refused is not None:
        raise NotAvailable(refused)
    held = acquire(boards)
    if held is None:
        raise NotAvailable(lock_conflict(boards))
    with held:
        for one in held.apply(limits, kept=True):
            parts = []
            if one.power_limit_w is not None:
                before = value_or_dash(one.power_limit_before_w)
                parts.append(f"{value_or_dash(one.power_limit_enforced_w)} W (before: {before} W)")
            if one.clock_limit_mhz is not None:
                parts.append(f"clock locked at {one.clock_limit_mhz:g} MHz")
            print(f"{one.device}: {', '.join(parts)}; until 'wattlaw limits restore'")
    for found in inventory.list_limiters():
        for state in found.devices:
            if found.name == "nvidia" and state.device in boards and state.is_persistent is False:
                told = "persistence mode is off: the limit lasts while some process uses the GPU"
                print(f"wattlaw: {state.device}: {told}", file=sys.stderr)
    return 0


@limits_app.command("restore")
def limits_restore() -> int:
    """Restore the original limits."""
    found, survey = restore_stale(StateFolder(), also_kept=True)
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
    return NotAvailable.exit_code if any(f.state == "not given back" for f in found) else 0


def _held(saved: SavedState | None, holder: str | None) -> str:
    if saved is None:
        return f"in use by {holder}" if holder else "-"
    who = f"{saved.user}, pid {saved.owner_pid}; before: {value_or_dash(saved.power_limit_w)} W"
    if saved.kept:
        return f"set by {who}"
    return f"by {who}" if holder else f"left by {who}: wattlaw limits restore"


@limits_app.command("site-files")
def limits_site_files(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to create.")],
    python: Annotated[
        str,
        typer.Option(
            metavar="PATH", help="Python on the nodes with wattlaw installed, owned by root."
        ),
    ] = sys.executable,
) -> int:
    """Write the Slurm prolog and epilog that let jobs set limits."""
    for path in write_site_files(folder, python):
        print(path)
    return 0
