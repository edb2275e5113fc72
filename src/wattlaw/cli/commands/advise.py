"""``wattlaw advise``."""

import json
from typing import Annotated

import typer

from wattlaw.api import results
from wattlaw.cli.common import options as opts
from wattlaw.cli.common.console import Console
from wattlaw.cli.common.options import option
from wattlaw.common.errors import NothingToRecommend, Refused


def advise(
    stores: opts.StoreArguments,
    workload: opts.WorkloadOption = None,
    minimize: Annotated[
        str | None,
        option("GOAL", "energy, time, gpu_hours, edp, cost or carbon instead of the default."),
    ] = None,
    deadline: Annotated[str | None, option("TIME", "Maximum training time: 90min, 6h, 2d.")] = None,
    max_slowdown: Annotated[
        str | None, option("SHARE", "Maximum slowdown relative to the fastest setting: 5% or 0.05.")
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
    baseline: opts.BaselineOption = None,
    any_batch: Annotated[
        bool, typer.Option("--any-batch", help="Consider batches of unknown or lower quality.")
    ] = False,
    details: Annotated[
        bool, typer.Option("--details", help="Also show the options and all warnings.")
    ] = False,
    energy_scope: opts.EnergyScopeOption = None,
    pue: opts.PueOption = None,
    grid: opts.GridOption = None,
    price: opts.PriceOption = None,
    price_per_gpu_hour: opts.GpuPriceOption = None,
    as_json: opts.JsonOption = False,
    strict: opts.StrictOption = False,
) -> int:
    """Recommend a GPU count, power limit, clock and batch size.

    The exit code is 1 if there is nothing to recommend.
    """
    opened = results.open(*stores, strict=strict)
    several = workload is None and len(opened.workloads) > 1
    lines, advices = [], []
    for name in opened.workloads if several else (workload,):
        try:
            advice = opened.advise(
                name, minimize=minimize, deadline=deadline, max_slowdown=max_slowdown,
                energy_budget=energy_budget, max_gpus=max_gpus, epochs=epochs, target=target,
                baseline=baseline, any_batch=any_batch, energy_scope=energy_scope, pue=pue,
                grid=grid, price=price, price_per_gpu_hour=price_per_gpu_hour,
            )  # fmt: skip
        except Refused as refusal:
            if not several:
                raise
            lines.append(f"{name}: no advice: {refusal}")
        else:
            advices.append(advice)
            lines += [advice.line] if several else advice.summary
    code = 0 if any(advice.recommended for advice in advices) else NothingToRecommend.exit_code
    if as_json:
        rows = [advice.to_dict() for advice in advices]
        print(json.dumps(rows if several else rows[0], allow_nan=False))
        return code
    console = Console()
    for line in lines:
        console.print(line)
    for advice in advices if details else ():
        console.show(advice.options)
        for line in advice.details:
            console.print(line)
    return code
