"""``wattlaw devices``."""

import dataclasses
import json

from wattlaw.cli.common.console import Console, make_table
from wattlaw.cli.common.options import JsonOption
from wattlaw.devices import inventory
from wattlaw.devices.limiter import LimitState
from wattlaw.formatting import interval, number


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
    table = make_table(("meter", "kind", "device"), [], title="Meters")
    for meter in meters:
        for device in meter.devices:
            facts = "\n".join(
                f"{name}: {value:.4g}" if isinstance(value, float) else f"{name}: {value}"
                for name, value in device.facts.items()
                if value not in (None, False)
            )
            description = f"{device.id}\n{device.name}\n{facts}".strip()
            table.add_row(meter.name, device.kind, description)
        for reason in filter(None, [meter.reason, *meter.problems]):
            table.add_row(meter.name, "-", reason)
    console.print(table)
    table = make_table(("limiter", "device"), [], title="Limiters (require root or sudo)")
    for limiter in limiters:
        for state in limiter.devices:
            table.add_row(limiter.name, f"{state.device}\n{_ranges(state)}")
        if limiter.reason:
            table.add_row(limiter.name, limiter.reason)
    console.print(table)
    return 0


def _ranges(state: LimitState) -> str:
    clocks = f"clocks {interval(state.min_mhz, state.max_mhz, 9)} MHz"
    if state.no_clock_limit_reason:
        clocks = f"no clock limit: {state.no_clock_limit_reason}"
    power = f"{number(state.power_limit_w, 9)} W of {interval(state.min_w, state.max_w, 9)} W"
    if state.limited_with:
        power += f", the same for {', '.join(state.limited_with)}"
    return f"{state.name}: {power}; {clocks}"
