"""``wattlaw report``."""

from itertools import tee
from pathlib import Path
from typing import Annotated

import typer

from wattlaw.analysis.claims import check_claims
from wattlaw.analysis.findings import find
from wattlaw.cli.common.footprint import footprint_of
from wattlaw.cli.common.options import (
    GpuPriceOption,
    GridOption,
    PriceOption,
    PueOption,
    StoreArguments,
)
from wattlaw.cli.common.quantities import finite
from wattlaw.report.accounting_window import read_accounting_windows
from wattlaw.report.layouts import layout
from wattlaw.report.page import write_report
from wattlaw.report.pictures import charts, figure_kinds, write_figures
from wattlaw.store.statistics import read_telemetry
from wattlaw.store.tables import read_stores

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
    chosen, asked = layout(template), figure_kinds(kinds)
    footprint = footprint_of(pue, grid, price, price_per_gpu_hour)
    runs, epochs = read_stores(stores)
    used, joint = read_telemetry(stores, runs)
    findings = find(
        runs, epochs, statistics=used, joint=joint, spans=read_accounting_windows(stores),
        footprint=footprint, reference=chosen.reference, target=finite("--target", target),
    )  # fmt: skip
    for_page, for_files = tee(charts(findings, chosen.study))
    write_report(findings, check_claims(findings), output, template, made=for_page)
    print(f"{output}: {output.stat().st_size / 1e6:.1f} MB; open it in a browser")
    if figures is not None:
        written = write_figures(for_files, figures, asked)
        print(f"{figures}: {len(written)} files")
    return 0
