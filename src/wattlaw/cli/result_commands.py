"""Commands around results: ``fit``, ``report``, ``claims``, ``advise``, ``import``, ``export``."""

from pathlib import Path
from typing import Annotated, Optional

import typer

from wattlaw.cli.options import (
    GpuPriceOption,
    GridOption,
    JsonOption,
    PriceOption,
    PueOption,
    RawOption,
    StoreArgument,
    StoreArguments,
)

app = typer.Typer()


@app.command()
def fit(
    source: Annotated[
        list[Path],
        typer.Argument(
            metavar="STORE|TABLE...", help="Stores, or a .csv, .parquet or .jsonl file."
        ),
    ],
    x: Annotated[str, typer.Option(help="Column of the number of workers.")] = "gpus",
    y: Annotated[str, typer.Option(help="Column of the time.")] = "epoch_time_s",
    by: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="COLS", help="Columns that tell series apart, with commas."),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Fit the power law t = alpha * N^-beta to each series."""
    from wattlaw.cli import analysing

    return analysing.fit(source, x, y, by, as_json=as_json)


@app.command()
def report(
    stores: StoreArguments,
    output: Annotated[Path, typer.Option("-o", "--output", help="The page.")] = Path("report.html"),
    figures: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="DIR", help="Also write each figure as a file."),
    ] = None,
    kinds: Annotated[
        str, typer.Option(metavar="KINDS", help="Of the figures' files: png, svg, html.")
    ] = "png,svg",
    template: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="NAME", help="Keep to one study's layout: mit-2022 or kit-2025."),
    ] = None,
    target: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(metavar="Q", help="Also tell what reaching this quality takes."),
    ] = None,
    pue: PueOption = None,
    grid: GridOption = None,
    price: PriceOption = None,
    price_per_gpu_hour: GpuPriceOption = None,
) -> int:
    """Write one HTML page, readable with no network, of what the stores say."""
    from wattlaw.cli import analysing

    return analysing.report(
        stores, output, figures, template=template, kinds=kinds, target=target,
        pue=pue, grid=grid, price=price, price_per_gpu_hour=price_per_gpu_hour,
    )  # fmt: skip


@app.command()
def claims(
    stores: StoreArguments,
    pue: PueOption = None,
    grid: GridOption = None,
    as_json: JsonOption = False,
) -> int:
    """Test the findings of the two studies on your stores: a verdict and the numbers for each."""
    from wattlaw.cli import claiming

    return claiming.claims(stores, pue=pue, grid=grid, as_json=as_json)


@app.command()
def advise(
    stores: StoreArguments,
    workload: Annotated[str, typer.Option("--workload", "-w", help="Which workload.")],
    deadline: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="TIME", help="The training must end in it: 90min, 6h, 2d."),
    ] = None,
    max_slowdown: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="SHARE", help="Than the fastest setting: 5% or 0.05."),
    ] = None,
    energy_budget: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="ENERGY", help="For the training: 50kWh, 3MJ."),
    ] = None,
    max_gpus: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(metavar="N", help="No more GPUs than these."),
    ] = None,
    epochs: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(metavar="E", help="Epochs to train; by default as many as the runs."),
    ] = None,
    target: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(metavar="Q", help="Train until the metric reaches this value instead."),
    ] = None,
    pue: PueOption = None,
    grid: GridOption = None,
    price: PriceOption = None,
    price_per_gpu_hour: GpuPriceOption = None,
    as_json: JsonOption = False,
) -> int:
    """Say how many GPUs, which cap, clock and batch to use, with what it costs and how sure."""
    from wattlaw.cli import advising

    return advising.advise(
        stores, workload, deadline=deadline, max_slowdown=max_slowdown,
        energy_budget=energy_budget, max_gpus=max_gpus, epochs=epochs, target=target,
        pue=pue, grid=grid, price=price, price_per_gpu_hour=price_per_gpu_hour, as_json=as_json,
    )  # fmt: skip


@app.command("import")
def import_(
    table: Annotated[
        Path, typer.Argument(metavar="TABLE", help="A .csv, .parquet or .jsonl file.")
    ],
    mapping: Annotated[
        str,
        typer.Option(
            "--map",
            metavar="FIELD=COLUMN,...",
            help="Which column is what; field=@value for what is the same in all rows.",
        ),
    ],
    store: Annotated[Path, typer.Option(help="Where the runs go.")] = Path("wattlaw-store"),
    workload: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Name of what was trained, if no column tells it."),
    ] = None,
    hardware: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Where it was measured, if no column tells it."),
    ] = None,
    study: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Name of the study; by default the file's name."),
    ] = None,
) -> int:
    """Turn measurements made elsewhere into runs of a store."""
    from wattlaw.cli import importing

    return importing.import_table(
        table, mapping, store, workload=workload, hardware=hardware, study=study
    )


@app.command()
def export(
    store: StoreArgument,
    table: Annotated[
        str,
        typer.Argument(metavar="TABLE", help="Which; see docs/command-line.md."),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="A .csv, .parquet or .jsonl file.")
    ],
    raw: RawOption = False,
) -> int:
    """Write a table of a store to a file."""
    from wattlaw.cli import analysing

    return analysing.export(store, table, output, raw=raw)
