"""``wattlaw devices``."""

import dataclasses
import json

from rich.table import Table

from wattlaw.cli.common.console import Console, make_table
from wattlaw.cli.common.options import JsonOption
from wattlaw.common.formatting import interval, number, power_limit_text
from wattlaw.measure.devices import inventory
from wattlaw.measure.devices.inventory import Availability
from wattlaw.measure.devices.limiter import LimitState
from wattlaw.measure.devices.meter import Device


def devices(as_json: JsonOption = False) -> int:
    """List the devices that can be measured and limited."""
    meters, limiters = inventory.list_meters(), inventory.list_limiters()
    if as_json:
        rows = {
            "meters": [dataclasses.asdict(meter) for meter in meters],
            "limiters": [dataclasses.asdict(limiter) for limiter in limiters],
        }
        print(json.dumps(rows))
        return 0
    console = Console()
    console.print(_measured(meters))
    missing = []
    for meter in meters:
        failed = [f"{d.id}: {d.facts['failed']}" for d in meter.devices if d.facts.get("failed")]
        reasons = dict.fromkeys([meter.reason, *failed, *meter.problems])
        missing += [(meter.name, reason) for reason in reasons if reason]
    if missing:
        console.print(make_table(("meter", "reason"), missing, title="Not measured"))
    table = make_table(("limiter", "device"), [], title="Limits (require root or sudo)")
    for limiter in limiters:
        for state in limiter.devices:
            table.add_row(limiter.name, f"{state.device}\n{_ranges(state)}")
        if limiter.reason:
            table.add_row(limiter.name, limiter.reason)
    console.print(table)
    return 0


def _measured(meters: list[Availability[Device]]) -> Table:
    """Return a table of the measured devices, first those that a run's energy includes."""
    devices = [device for meter in meters for device in meter.devices]
    kinds, counted = inventory.counted(devices)
    containers = {inner: device.kind for device in counted for inner in device.contains}
    rows = []
    for meter in meters:
        for device in meter.devices:
            outer = containers.get(device.kind, "node" if kinds == ("node",) else None)
            is_inside = outer and device.has_energy and device.kind not in ("node", "chassis")
            role = "yes" if device in counted else f"in {outer}" if is_inside else "no"
            if not device.facts.get("failed"):
                rows.append((role, device.kind, f"{device.id}\n{meter.name}", _describe(device)))
    rows.sort(key=lambda row: row[0] != "yes")
    title = f"Energy of a run includes: {' + '.join(kinds)}"
    columns = ("included", "kind", "device, meter", "what is measured")
    return make_table(
        columns, rows, title=title if kinds else "Energy cannot be measured on this machine"
    )


def _describe(device: Device) -> str:
    facts = device.facts
    texts = {
        "energy_counter": "energy counter ({})", "power": "power ({})",
        "counter_refresh_s": "updated every {} s", "resolution_s": "updated every {} s",
    }  # fmt: skip
    sources = []
    for name, text in texts.items():
        value = facts.get(name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value and is_number == name.endswith("_s"):
            sources.append(text.format(number(value) if is_number else value))
    of_kind = "" if device.kind == "node" else f" of a {device.kind}"
    notes = [
        device.name, str(facts.get("scope") or ""),
        ", ".join(dict.fromkeys(sources)) if device.has_energy else "utilisation only, no energy",
        f"includes {', '.join(device.contains)}" if device.contains else "",
        f"included only if no other meter{of_kind} reports energy"
        if facts.get("complements") else "",
        "shared: the energy includes that of other users" if facts.get("is_shared") else "",
    ]  # fmt: skip
    return "\n".join(filter(None, notes))


def _ranges(state: LimitState) -> str:
    clocks = f"clocks {interval(state.min_mhz, state.max_mhz, 9)} MHz"
    if state.no_clock_limit_reason:
        clocks = f"no clock limit: {state.no_clock_limit_reason}"
    power = f"{power_limit_text(state.power_limit_w)} of {interval(state.min_w, state.max_w, 9)} W"
    if state.limited_with:
        power += f", the same for {', '.join(state.limited_with)}"
    profiles = (
        f"; power profiles: {', '.join(state.power_profiles)}" if state.power_profiles else ""
    )
    return f"{state.name}: {power}; {clocks}{profiles}"
