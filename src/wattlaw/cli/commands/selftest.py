"""``wattlaw selftest``."""

import dataclasses
import json

from rich.text import Text

from wattlaw.cli.common.console import Console, make_table
from wattlaw.cli.common.options import (
    JsonOption,
)
from wattlaw.terminal import escaped_output

_VERDICT_STYLES = {"ok": "green", "poor": "red"}


def selftest(as_json: JsonOption = False) -> int:
    """Check the overhead and accuracy of measurements.

    The checks take about 40 s.
    """
    from wattlaw.launch.selftest import run_checks

    console = Console(stderr=True)
    with console.status("measuring the sampler and a training loop (about 40 s)"), escaped_output():
        checks = run_checks()
    if as_json:
        print(json.dumps([dataclasses.asdict(check) for check in checks]))
        return 0
    cells = [
        (
            Text(f"{check.check}, {check.device}" if check.device else check.check)
            + Text(f"\n{check.note}" if check.note else "", "dim"),
            "-" if check.value is None else f"{check.value:.3g} {check.unit}",
            "-" if check.allowed is None else f"<= {check.allowed:g}",
            Text(check.verdict, _VERDICT_STYLES.get(check.verdict, "yellow")),
        )
        for check in checks
    ]
    Console().print(make_table(("check", "value", "allowed", "verdict"), cells))
    return 0
