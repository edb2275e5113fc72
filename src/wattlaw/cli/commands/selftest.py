"""``wattlaw selftest``."""

import dataclasses
import json

from rich import progress as bars
from rich.text import Text

from wattlaw.cli.common.console import Console, make_table
from wattlaw.cli.common.options import JsonOption
from wattlaw.common.terminal import escaped_output

_VERDICT_STYLES = {"ok": "green", "poor": "red"}


def selftest(as_json: JsonOption = False) -> int:
    """Check the overhead and accuracy of measurements.

    The checks take less than a minute. The exit code is 1 if a verdict is poor.
    """
    from wattlaw.running.selftest import run_checks

    console = Console(stderr=True)
    columns = (bars.BarColumn(), bars.TaskProgressColumn(), bars.TextColumn("{task.description}"))
    with (
        bars.Progress(*columns, console=console, transient=True, auto_refresh=False) as shown,
        escaped_output(),
    ):
        task = shown.add_task("start", total=1.0)
        seen: list[str] = []

        def report(check: str, share: float) -> None:
            shown.update(task, description=check, completed=share, refresh=True)
            if not console.is_terminal and check not in seen:
                seen.append(check)
                console.print(f"checking: {check}")

        checks = run_checks(progress=report)
    if as_json:
        print(json.dumps([dataclasses.asdict(check) for check in checks]))
    else:
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
    return 1 if any(check.verdict == "poor" for check in checks) else 0
