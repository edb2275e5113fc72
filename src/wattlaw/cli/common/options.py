"""How options are declared, options that several commands share, and their values."""

import json
import math
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from wattlaw.errors import BadInput
from wattlaw.text import quote


def option(metavar: str, text: str, *names: str, **settings: Any) -> Any:
    """Return the declaration of an option: the name of its value, its help, its names."""
    return typer.Option(*names, metavar=metavar, help=text, **settings)


def positive(value: float | None) -> float | None:
    """Return the value of an option; refuse what is not a finite number > 0."""
    if value is not None and not 0 < value < math.inf:
        raise typer.BadParameter(f"{value:g} is not a finite number > 0")
    return value


StoreArgument = Annotated[Path, typer.Argument(metavar="STORE", help="Results folder.")]
StoreArguments = Annotated[list[Path], typer.Argument(metavar="STORE", help="Results folders.")]
StudyArgument = Annotated[Path, typer.Argument(metavar="STUDY.yaml", help="Study file.")]
WorkloadOption = Annotated[
    str | None, option("W", "Workload, if the stores have several.", "--workload", "-w")
]
BaselineOption = Annotated[
    str | None,
    option("KEY=VALUE,...", "Setting to compare with: gpus=4,global_batch=256. Default: fastest."),
]
LaunchOption = Annotated[
    str | None,
    option("KIND", "Launcher instead of the study's: local, slurm, simulated, replay."),
]
TableOption = Annotated[Path | None, option("FILE", "Table of measurements for --launch replay.")]
PowersOption = Annotated[str | None, option("W,...", "Power limits per GPU; none: no limit.")]
ClocksOption = Annotated[str | None, option("MHZ,...", "Clock limits per GPU; none: no limit.")]
HardwareOption = Annotated[
    str | None, option("NAME|FILE", "Cluster or GPU; see 'wattlaw simulate --list-hardware'.")
]
PowerOption = Annotated[
    float | None, option("W", "Power limit per GPU.", "--power-limit", callback=positive)
]
ClockOption = Annotated[
    float | None, option("MHZ", "Locked SM clock per GPU.", "--clock-limit", callback=positive)
]
PriorClocksOption = Annotated[
    Literal["default"] | None,
    typer.Option("--prior-clocks", help="'default' confirms that no clock is locked now."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
StrictOption = Annotated[
    bool, typer.Option("--strict", help="Refuse a store with damaged files (exit code 2).")
]
RawOption = Annotated[
    bool, typer.Option("--raw", help="Write CSV cells that look like formulas unchanged.")
]
PueOption = Annotated[
    float | None, option("X", "Power usage effectiveness of the data centre, such as 1.2.")
]
GridOption = Annotated[
    str | None, option("G|REGION", "Carbon intensity in g CO2e per kWh, or a region such as DE.")
]
PriceOption = Annotated[
    str | None, option("MONEY|REGION", "Price per kWh: 0.21, '0.21 EUR', or a region.")
]
GpuPriceOption = Annotated[str | None, option("MONEY", "Price per GPU-hour: 2.5 or '2.5 EUR'.")]


def parse_json_object(name: str, text: str) -> dict[str, Any]:
    """Return the JSON object that is the value of an option."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        example = """'{"image_size": 160}'"""
        raise BadInput(
            f"{name}: {quote(text)} is not valid; expected a JSON object such as {example}"
        )
    return value
