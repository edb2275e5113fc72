"""``wattlaw fit``."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from wattlaw.api import fits as tables
from wattlaw.api import results as stores
from wattlaw.api.fits import Fits
from wattlaw.cli.common.console import Console
from wattlaw.cli.common.options import JsonOption
from wattlaw.errors import BadInput, Refused
from wattlaw.formatting import group_label, plural
from wattlaw.text import collapse_whitespace, shorten

app = typer.Typer()
_WIDE = 150
_LEFT = ("series", "selected", "breakpoint")


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
        str | None,
        typer.Option(metavar="COLS", help="Columns that identify a series, separated by commas."),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Fit scaling laws to stores or to a table.

    Each series gets the power law t = alpha * N^-beta, and a comparison with other laws.
    """
    columns = [name.strip() for name in by.split(",") if name.strip()] if by else []
    for path in source:
        if not path.exists():
            raise BadInput(f"{path}: no such file or store")
        if path.is_file() and len(source) > 1:
            raise BadInput(f"{path}: is a table; allowed: one table, or one or more stores")
    try:
        fits = _fits(source, x, y, None if by is None else columns)
    except BadInput as error:
        text = str(error)
        prefix = "" if text.startswith(str(source[0])) else f"{source[0]}: "
        raise BadInput(f"{prefix}{text}") from None
    for group, reason in fits.refusals:
        text = f"no law for {shorten(group_label(group)) or 'the table'}: {reason}"
        print(f"wattlaw: {collapse_whitespace(text)}", file=sys.stderr)
    if as_json:
        print(json.dumps(fits.to_dict()["rows"], allow_nan=False))
    elif fits.laws:
        _show(fits)
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
            print(
                f"wattlaw: {source[0]}: left out {rows} without {x} or {y}",
                file=sys.stderr,
            )
        return fits
    results = stores.open(*source)
    if results.is_simulated:
        print("wattlaw: all runs are simulated: nothing was measured", file=sys.stderr)
    return results.fit(x, y, by)


def _show(fits: Fits) -> None:
    table = Table(title="t = alpha * N^-beta", title_justify="left", box=SIMPLE_HEAD)
    cells = fits.to_text_frame()
    for name in cells:
        table.add_column(str(name), justify="left" if name in _LEFT else "right", overflow="fold")
    for row in cells.itertuples(index=False):
        table.add_row(*row)
    if any(law.trusted.interval == "repeats" for _, law in fits.laws):
        table.caption = "* from the counts' means: repeats of a count share deviations"
    console = Console()
    if not console.is_terminal:  # a file or a pager is wide enough
        console = Console(width=_WIDE)
    console.print(table)
