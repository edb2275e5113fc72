"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

StoreArgument = Annotated[Path, typer.Argument(metavar="STORE", help="A store made by 'run'.")]
StoreArguments = Annotated[
    list[Path], typer.Argument(metavar="STORE...", help="One or more stores made by 'run'.")
]
StudyArgument = Annotated[Path, typer.Argument(metavar="STUDY.yaml", help="A study file.")]
PowerOption = Annotated[
    float | None, typer.Option("--power-limit", metavar="W", help="Power limit of each GPU.")
]
ClockOption = Annotated[
    float | None, typer.Option("--clock-limit", metavar="MHZ", help="Clock of each GPU.")
]
PriorClocksOption = Annotated[
    str | None,
    typer.Option("--prior-clocks", metavar="default", help="State that no clock is locked now."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
RawOption = Annotated[
    bool, typer.Option("--raw", help="Write CSV cells that look like a formula unchanged.")
]
PueOption = Annotated[
    float | None,
    typer.Option(metavar="X", help="Power usage effectiveness of the centre, such as 1.2."),
]
GridOption = Annotated[
    str | None,
    typer.Option(metavar="G|REGION", help="Grid's g CO2e per kWh, or a region such as DE."),
]
PriceOption = Annotated[
    str | None,
    typer.Option(metavar="MONEY|REGION", help="Price of a kWh: 0.21, '0.21 EUR', or a region."),
]
GpuPriceOption = Annotated[
    str | None, typer.Option(metavar="MONEY", help="Price of a GPU-hour: 2.5 or '2.5 EUR'.")
]
