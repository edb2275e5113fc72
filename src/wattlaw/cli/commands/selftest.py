"""``wattlaw selftest``: the overhead and accuracy of measurements on this machine."""

import dataclasses
import json

import typer
from rich.table import Table
from rich.text import Text

from wattlaw.cli.common.console import Console
from wattlaw.cli.common.options import JsonOption
from wattlaw.launch.selftest import run_checks
from wattlaw.terminal import escaped_output

app = typer.Typer()


@app.command()
def selftest(as_json: JsonOption = False) -> int:
    """Check the overhead and accuracy of measurements.

    The checks take about 40 s.
    """
    console = Console(stderr=True)
    with console.status("measuring the sampler and a training loop (about 40 s)"), escaped_output():
        checks = run_checks()
    if as_json:
        print(json.dumps([dataclasses.asdict(check) for check in checks]))
        return 0
    table = Table("check", "value", "allowed", "verdict")
    colours = {"ok": "green", "poor": "red"}
    for check in checks:
        name = f"{check.check}, {check.device}" if check.device else check.check
        note = Text(f"\n{check.note}" if check.note else "", "dim")
        table.add_row(
            Text(name) + note,
            "-" if check.value is None else f"{check.value:.3g} {check.unit}",
            "-" if check.allowed is None else f"<= {check.allowed:g}",
            Text(check.verdict, colours.get(check.verdict, "yellow")),
        )
    Console().print(table)
    return 0
