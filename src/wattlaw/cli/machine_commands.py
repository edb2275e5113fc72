"""The commands around this machine: ``devices``, ``selftest`` and ``limits``."""

import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

from wattlaw.cli.options import ClockOption, JsonOption, PowerOption, PriorClocksOption

app = typer.Typer()
limits_app = typer.Typer(help="Power and clock limits: show, set, give back.")
app.add_typer(limits_app, name="limits")


@app.command()
def devices(as_json: JsonOption = False) -> int:
    """List what this machine can measure and limit, and why not."""
    from wattlaw.cli import machine

    return machine.devices(as_json=as_json)


@app.command()
def selftest(as_json: JsonOption = False) -> int:
    """Measure the measuring on this machine: a verdict per line, in about 40 s."""
    from wattlaw.cli import machine

    return machine.selftest(as_json=as_json)


@limits_app.command("show")
def limits_show(as_json: JsonOption = False) -> int:
    """Show the limits of each device, and what is to be given back."""
    from wattlaw.cli import machine

    return machine.limits_show(as_json=as_json)


@limits_app.command("set")
def limits_set(
    power_limit: PowerOption = None,
    clock_limit: ClockOption = None,
    prior_clocks: PriorClocksOption = None,
    gpu: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(metavar="UUID", help="Which GPU; may be repeated. By default all visible."),
    ] = None,
) -> int:
    """Limit GPUs until 'limits restore'."""
    from wattlaw.cli import machine
    from wattlaw.limits.requests import Limits

    return machine.limits_set(gpu or [], Limits(power_limit, clock_limit), prior_clocks)


@limits_app.command("restore")
def limits_restore() -> int:
    """Give back the limits that were there before wattlaw changed them."""
    from wattlaw.cli import machine

    return machine.limits_restore()


@limits_app.command("site-files")
def limits_site_files(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder for them.")],
    python: Annotated[
        str, typer.Option(metavar="PATH", help="The nodes' Python that has wattlaw; root's.")
    ] = sys.executable,
) -> int:
    """Write what a site installs so that Slurm jobs can be given caps (docs/slurm-admin.md)."""
    from wattlaw.cli import machine

    return machine.limits_site_files(folder, python)
