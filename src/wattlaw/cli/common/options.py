"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from wattlaw.cli.common.parsing import positive

StoreArgument = Annotated[
    Path, typer.Argument(metavar="STORE", help="Results folder of 'wattlaw run'.")
]
StoreArguments = Annotated[
    list[Path], typer.Argument(metavar="STORE...", help="Results folders of 'wattlaw run'.")
]
StudyArgument = Annotated[Path, typer.Argument(metavar="STUDY.yaml", help="Study file.")]
PowerOption = Annotated[
    float | None,
    typer.Option("--power-limit", metavar="W", callback=positive, help="Power limit per GPU."),
]
ClockOption = Annotated[
    float | None,
    typer.Option(
        "--clock-limit", metavar="MHZ", callback=positive, help="Locked SM clock per GPU."
    ),
]
PriorClocksOption = Annotated[
    Literal["default"] | None,
    typer.Option("--prior-clocks", help="Confirm that no clock lock is active now."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
RawOption = Annotated[
    bool, typer.Option("--raw", help="Write CSV cells that look like formulas unchanged.")
]
PueOption = Annotated[
    float | None,
    typer.Option(metavar="X", help="Power usage effectiveness of the data centre, such as 1.2."),
]
GridOption = Annotated[
    str | None,
    typer.Option(
        metavar="G|REGION", help="Carbon intensity in g CO2e per kWh, or a region such as DE."
    ),
]
PriceOption = Annotated[
    str | None,
    typer.Option(metavar="MONEY|REGION", help="Price per kWh: 0.21, '0.21 EUR', or a region."),
]
GpuPriceOption = Annotated[
    str | None, typer.Option(metavar="MONEY", help="Price per GPU-hour: 2.5 or '2.5 EUR'.")
]
