"""``wattlaw report``."""

from pathlib import Path
from typing import Annotated

import typer

from wattlaw.api import results
from wattlaw.cli.common.options import (
    GpuPriceOption,
    GridOption,
    PriceOption,
    PueOption,
    StoreArguments,
)

app = typer.Typer()


@app.command()
def report(
    stores: StoreArguments,
    output: Annotated[Path, typer.Option("-o", "--output", help="HTML file to write.")] = Path(
        "report.html"
    ),
    figures: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Also write the figures to this folder."),
    ] = None,
    kinds: Annotated[
        str, typer.Option(metavar="KINDS", help="File types of the figures: png, svg, html.")
    ] = "png,svg",
    template: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Layout of a published study: mit-2022 or kit-2025."),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(metavar="Q", help="Also report time and energy to this value of the metric."),
    ] = None,
    pue: PueOption = None,
    grid: GridOption = None,
    price: PriceOption = None,
    price_per_gpu_hour: GpuPriceOption = None,
) -> int:
    """Write an HTML report that works offline."""
    written = results.open(*stores).report(
        output, figures=figures, kinds=kinds, template=template, target=target, pue=pue, grid=grid,
        price=price, price_per_gpu_hour=price_per_gpu_hour,
    )  # fmt: skip
    print(f"{output}: {output.stat().st_size / 1e6:.1f} MB; open it in a browser")
    if figures is not None:
        print(f"{figures}: {len(written.figures)} files")
    return 0
