"""``wattlaw advise``: what to run, from the runs of one or more stores."""

import json
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from wattlaw.api import results
from wattlaw.api.advice import Advice
from wattlaw.cli.common.console import Console
from wattlaw.cli.common.options import (
    GpuPriceOption,
    GridOption,
    JsonOption,
    PriceOption,
    PueOption,
    StoreArguments,
)

app = typer.Typer()
_LEFT = ("precision", "hardware", "known by")


@app.command()
def advise(
    stores: StoreArguments,
    workload: Annotated[
        str | None,
        typer.Option("--workload", "-w", help="Workload. Required if the stores have several."),
    ] = None,
    deadline: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Maximum training time: 90min, 6h, 2d."),
    ] = None,
    max_slowdown: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE", help="Maximum slowdown relative to the fastest setting: 5% or 0.05."
        ),
    ] = None,
    energy_budget: Annotated[
        str | None,
        typer.Option(metavar="ENERGY", help="Maximum energy of the training: 50kWh, 3MJ."),
    ] = None,
    max_gpus: Annotated[
        int | None,
        typer.Option(metavar="N", help="Maximum number of GPUs."),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(metavar="E", help="Epochs to train. Default: those of the runs."),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(metavar="Q", help="Train until the metric reaches this value."),
    ] = None,
    pue: PueOption = None,
    grid: GridOption = None,
    price: PriceOption = None,
    price_per_gpu_hour: GpuPriceOption = None,
    as_json: JsonOption = False,
) -> int:
    """Recommend a GPU count, power limit, clock and batch size."""
    advice = results.open(*stores).advise(
        workload, deadline=deadline, max_slowdown=max_slowdown, energy_budget=energy_budget,
        max_gpus=max_gpus, epochs=epochs, target=target, pue=pue, grid=grid, price=price,
        price_per_gpu_hour=price_per_gpu_hour,
    )  # fmt: skip
    if as_json:
        print(json.dumps(advice.to_dict(), allow_nan=False))
        return 0
    console = Console()
    for line in advice.summary:
        console.print(line)
    if advice.pareto:
        console.print(_front(advice))
    for warning in advice.warnings:
        console.print(f"Warning: {warning}")
    return 0


def _front(advice: Advice) -> Table:
    table = Table(title=advice.title, title_justify="left", box=box.SIMPLE_HEAD)
    options = advice.to_text_frame()
    for name in options:
        table.add_column(str(name), justify="left" if name in _LEFT else "right")
    for row in options.itertuples(index=False):
        table.add_row(*row)
    if len(advice.pareto) > len(options):
        table.caption = f"{len(advice.pareto) - len(options)} slower options are in the JSON"
    return table
