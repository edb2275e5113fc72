"""``wattlaw report``."""

from pathlib import Path
from typing import Annotated

import typer

from wattlaw.api import results
from wattlaw.cli.common import options as opts
from wattlaw.cli.common.options import option


def report(
    stores: opts.StoreArguments,
    output: Annotated[Path, typer.Option("-o", "--output", help="HTML file to write.")] = Path(
        "report.html"
    ),
    figures: Annotated[Path | None, option("DIR", "Also write the figures to this folder.")] = None,
    kinds: Annotated[
        str, option("KINDS", "File types of the figures: png, svg, html.")
    ] = "png,svg",
    template: Annotated[
        str | None, option("NAME", "Layout of a published study: mit-2022 or kit-2025.")
    ] = None,
    claims: Annotated[
        bool, option(None, "Show the published claims even if these runs decide none.")
    ] = False,
    interactive: Annotated[
        bool, option(None, "Figures with values and zoom, and tables that can be sorted.")
    ] = False,
    target: Annotated[
        float | None, option("Q", "Also report time and energy to this value of the metric.")
    ] = None,
    pue: opts.PueOption = None,
    grid: opts.GridOption = None,
    price: opts.PriceOption = None,
    price_per_gpu_hour: opts.GpuPriceOption = None,
) -> int:
    """Write an HTML report that works offline."""
    written = results.open(*stores).report(
        output, figures=figures, kinds=kinds, template=template, claims=claims,
        interactive=interactive, target=target, pue=pue, grid=grid, price=price,
        price_per_gpu_hour=price_per_gpu_hour,
    )  # fmt: skip
    print(f"{output}: {output.stat().st_size / 1e6:.1f} MB; open it in a browser")
    if figures is not None:
        print(f"{figures}: {len(written.figures)} files")
    return 0
