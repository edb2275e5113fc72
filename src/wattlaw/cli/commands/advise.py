"""``wattlaw advise``."""

import json
from typing import Annotated

import typer

from wattlaw.api import results
from wattlaw.cli.common import options as opts
from wattlaw.cli.common.console import Console, table_of
from wattlaw.cli.common.options import option


def advise(
    stores: opts.StoreArguments,
    workload: Annotated[
        str | None,
        typer.Option("--workload", "-w", help="Workload. Required if the stores have several."),
    ] = None,
    minimize: Annotated[
        str | None,
        option("GOAL", "energy, time, gpu_hours, edp, cost or carbon instead of the default."),
    ] = None,
    deadline: Annotated[str | None, option("TIME", "Maximum training time: 90min, 6h, 2d.")] = None,
    max_slowdown: Annotated[
        str | None,
        option("SHARE", "Maximum slowdown relative to the fastest setting: 5% or 0.05."),
    ] = None,
    energy_budget: Annotated[
        str | None, option("ENERGY", "Maximum energy of the training: 50kWh, 3MJ.")
    ] = None,
    max_gpus: Annotated[int | None, option("N", "Maximum number of GPUs.")] = None,
    epochs: Annotated[
        int | None, option("E", "Epochs to train. Default: those of the runs.")
    ] = None,
    target: Annotated[
        float | None, option("Q", "Train until the metric reaches this value.")
    ] = None,
    pue: opts.PueOption = None,
    grid: opts.GridOption = None,
    price: opts.PriceOption = None,
    price_per_gpu_hour: opts.GpuPriceOption = None,
    as_json: opts.JsonOption = False,
    strict: opts.StrictOption = False,
) -> int:
    """Recommend a GPU count, power limit, clock and batch size."""
    advice = results.open(*stores, strict=strict).advise(
        workload, minimize=minimize, deadline=deadline, max_slowdown=max_slowdown,
        energy_budget=energy_budget, max_gpus=max_gpus, epochs=epochs, target=target, pue=pue,
        grid=grid, price=price, price_per_gpu_hour=price_per_gpu_hour,
    )  # fmt: skip
    if as_json:
        print(json.dumps(advice.to_dict(), allow_nan=False))
        return 0
    console = Console()
    for line in advice.summary:
        console.print(line)
    if (table := advice.options) is not None:
        shown = table_of(table)
        if len(advice.pareto) > len(table.rows):
            shown.caption = f"{len(advice.pareto) - len(table.rows)} slower options are in the JSON"
        console.print(shown)
    for warning in advice.warnings:
        console.print(f"Warning: {warning}")
    return 0
