"""Commands on the results of stores: fit, report, claims, advise and export."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from wattlaw.analysis.claims import CONTRADICTED, NOT_DECIDABLE, SUPPORTED
from wattlaw.api import fits as tables
from wattlaw.api import results
from wattlaw.api.advice import Advice
from wattlaw.api.claims import Claims
from wattlaw.api.fits import Fits
from wattlaw.cli import options as opts
from wattlaw.cli.console import Console, make_table
from wattlaw.cli.options import option
from wattlaw.errors import BadInput, Refused
from wattlaw.formatting import group_label, plural
from wattlaw.reference.published import SOURCES
from wattlaw.terminal import print_note
from wattlaw.text import collapse_whitespace, shorten

app = typer.Typer()
_WIDE = 150
#: Columns of text in the tables of fits and advice.
_LEFT = ("series", "selected", "breakpoint", "precision", "hardware", "known by")
_VERDICT_STYLES = {SUPPORTED: "green", CONTRADICTED: "red", NOT_DECIDABLE: "dim"}


@app.command()
def fit(
    source: Annotated[
        list[Path],
        typer.Argument(
            metavar="STORE|TABLE...", help="Results folders, or one .csv, .parquet or .jsonl file."
        ),
    ],
    x: Annotated[str, typer.Option(help="Column with the number of workers.")] = "gpus",
    y: Annotated[str, typer.Option(help="Column to fit, such as the time.")] = "epoch_time_s",
    by: Annotated[
        str | None, option("COLS", "Columns that identify a series, separated by commas.")
    ] = None,
    as_json: opts.JsonOption = False,
) -> int:
    """Fit scaling laws to stores or to a table.

    Each series gets the power law t = alpha * N^-beta, and a comparison with other laws.
    """
    columns = None if by is None else [name.strip() for name in by.split(",") if name.strip()]
    for path in source:
        if not path.exists():
            raise BadInput(f"{path}: no such file or store")
        if path.is_file() and len(source) > 1:
            raise BadInput(f"{path}: is a table; allowed: one table, or one or more stores")
    try:
        fits = _fits(source, x, y, columns)
    except BadInput as error:
        text = str(error)
        prefix = "" if text.startswith(str(source[0])) else f"{source[0]}: "
        raise BadInput(f"{prefix}{text}") from None
    for group, reason in fits.refusals:
        text = f"no law for {shorten(group_label(group)) or 'the table'}: {reason}"
        print_note(collapse_whitespace(text))
    if as_json:
        print(json.dumps(fits.to_dict()["rows"], allow_nan=False))
    elif fits.laws:
        _show_fits(fits)
    if fits.laws:
        return 0
    if fits.refusals:
        return Refused.exit_code
    raise Refused(f"{source[0]}: no rows to fit (no runs done, or no series of several {x})")


def _fits(source: Sequence[Path], x: str, y: str, by: list[str] | None) -> Fits:
    if source[0].is_file():
        fits = tables.fit(source[0], x, y, by or ())
        if fits.left_out:
            rows = plural(fits.left_out, "row")
            print_note(f"{source[0]}: left out {rows} without {x} or {y}")
        return fits
    opened = results.open(*source)
    if opened.is_simulated:
        print_note("all runs are simulated: nothing was measured")
    return opened.fit(x, y, by)


def _show_fits(fits: Fits) -> None:
    cells = fits.to_text_frame()
    table = make_table(
        cells, cells.to_numpy(), right={*cells} - {*_LEFT}, is_plain=True,
        title="t = alpha * N^-beta",
    )  # fmt: skip
    if any(law.trusted.interval == "repeats" for _, law in fits.laws):
        table.caption = "* from the counts' means: repeats of a count share deviations"
    console = Console()
    if not console.is_terminal:  # a file or a pager is wide enough
        console = Console(width=_WIDE)
    console.print(table)


@app.command()
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
        output, figures=figures, kinds=kinds, template=template, target=target, pue=pue, grid=grid,
        price=price, price_per_gpu_hour=price_per_gpu_hour,
    )  # fmt: skip
    print(f"{output}: {output.stat().st_size / 1e6:.1f} MB; open it in a browser")
    if figures is not None:
        print(f"{figures}: {len(written.figures)} files")
    return 0


@app.command()
def claims(
    stores: opts.StoreArguments,
    pue: opts.PueOption = None,
    grid: opts.GridOption = None,
    as_json: opts.JsonOption = False,
) -> int:
    """Test published findings on your own runs."""
    tested = results.open(*stores).claims(pue=pue, grid=grid)
    if as_json:
        print(json.dumps(tested.to_dict()["claims"], allow_nan=False))
    else:
        _show_claims(tested)
    return 0


def _show_claims(claims: Claims) -> None:
    console = Console()
    for study, source in SOURCES.items():
        of_study = [claim for claim in claims if claim.study == study]
        table = Table(title=f"{study}: {source.citation}", title_justify="left")
        table.add_column("claim", ratio=2, overflow="fold")
        table.add_column("verdict", min_width=len(NOT_DECIDABLE), overflow="fold")
        table.add_column("evidence", ratio=4, overflow="fold")
        for claim in of_study:
            verdict = Text(claim.verdict, _VERDICT_STYLES[claim.verdict])
            table.add_row(claim.claim, verdict, claim.evidence)
        console.print(table)
        counts = Counter(claim.verdict for claim in of_study)
        shown = ", ".join(f"{counts[verdict]} {verdict}" for verdict in _VERDICT_STYLES)
        console.print(f"{len(of_study)} claims: {shown}\n")
    console.print("Criteria: docs/claims.md, or --json.")


@app.command()
def advise(
    stores: opts.StoreArguments,
    workload: Annotated[
        str | None,
        typer.Option("--workload", "-w", help="Workload. Required if the stores have several."),
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
    cells = advice.to_text_frame()
    table = make_table(
        cells, cells.to_numpy(), right={*cells} - {*_LEFT}, is_plain=True, title=advice.title
    )
    if len(advice.pareto) > len(cells):
        table.caption = f"{len(advice.pareto) - len(cells)} slower options are in the JSON"
    return table


@app.command()
def export(
    store: opts.StoreArgument,
    table: Annotated[results.TableName, typer.Argument(help="Table to write.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="A .csv, .parquet or .jsonl file.")
    ],
    raw: opts.RawOption = False,
) -> int:
    """Write a table of a store to a file."""
    rows = results.open(store).export(table, output, raw=raw)
    print(f"{output}: {rows} rows of {table}")
    return 0
