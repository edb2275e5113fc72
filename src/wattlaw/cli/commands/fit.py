"""``wattlaw fit``."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from wattlaw.analysis.groups import group_label
from wattlaw.analysis.laws.fits import Fit, Fits, fit_groups
from wattlaw.analysis.laws.power_law import PowerLaw
from wattlaw.analysis.metrics import run_metrics
from wattlaw.analysis.series import ENERGY, fit_series, scaling_series
from wattlaw.cli.common.console import Console
from wattlaw.cli.common.options import JsonOption
from wattlaw.errors import BadInput, Refused
from wattlaw.store.tables import read_stores, read_table
from wattlaw.text import collapse_whitespace, shorten

app = typer.Typer()
ENERGY_IS = "energy_is"
_WIDE = 150


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
        fits = _fits(source, x, y, columns, series=by is None and x == "gpus")
    except BadInput as error:
        told = str(error)
        raise BadInput(
            told if told.startswith(str(source[0])) else f"{source[0]}: {told}"
        ) from None
    for group, reason in fits.refusals:
        words = f"no law for {shorten(group_label(group)) or 'the table'}: {reason}"
        print(f"wattlaw: {collapse_whitespace(words)}", file=sys.stderr)
    if as_json:
        print(json.dumps(fits.as_json(), allow_nan=False))
    elif fits.laws:
        _show(fits)
    if fits.laws:
        return 0
    if fits.refusals:
        return Refused.exit_code
    raise Refused(f"{source[0]}: no rows to fit (no runs done, or no series of several {x})")


def _fits(source: Sequence[Path], x: str, y: str, by: list[str], *, series: bool) -> Fits:
    if source[0].is_file():
        table = read_table(
            source[0], list(dict.fromkeys([x, y])), [n for n in by if n not in (x, y)]
        )
        left_out = int(table[[x, y]].isna().any(axis=1).sum())
        if left_out:
            print(f"wattlaw: {source[0]}: {left_out} of {len(table)} rows have no {x} or no {y} "
                  "and are left out", file=sys.stderr)  # fmt: skip
        return fit_groups(table, x, y, by)
    table = run_metrics(*read_stores(source))
    if len(table) and (table["launcher"] == "simulated").all():
        print("wattlaw: all runs are simulated: nothing was measured", file=sys.stderr)
    if series and y in table.columns:
        return fit_series(scaling_series(table), y)
    return fit_groups(table, x, y, [*by, *([ENERGY_IS] if y == ENERGY else [])])


def _show(fits: Fits) -> None:
    table = Table(title="t = alpha * N^-beta", title_justify="left", box=SIMPLE_HEAD)
    for name in ("series", "alpha", "beta", "SE", "95 % interval", "R²", "p", "n", "N",
                 "selected", "breakpoint"):  # fmt: skip
        left = name in {"series", "selected", "breakpoint"}
        table.add_column(name, justify="left" if left else "right", overflow="fold")
    for row in fits.rows:
        if row.law is not None:
            table.add_row(*_cells(row, row.law))
    if any(law.trusted.interval == "repeats" for _, law in fits.laws):
        table.caption = "* from the counts' means: repeats of a count share deviations"
    console = Console()
    if not console.is_terminal:  # a file or a pager has room
        console = Console(width=_WIDE)
    console.print(table)


def _cells(row: Fit, law: PowerLaw) -> list[str]:
    """Return a series in the table's columns: the intervals that a report should quote."""
    quoted = law.trusted
    low, high = quoted.beta_ci
    return [
        group_label(row.group) or "all rows",
        f"{law.alpha:.4g}",
        f"{law.beta:.3f}",
        f"{quoted.beta_se:.3f}",
        f"{low:.3f} to {high:.3f}{'*' if quoted.interval == 'repeats' else ''}",
        "-" if law.r2 is None else f"{law.r2:.4f}",
        "-" if law.p_value is None else f"{law.p_value:.2g}",
        str(law.n),
        f"{law.x_min:g}-{law.x_max:g}",
        row.selection.best.name if row.selection else "-",
        _breakpoint_cell(row),
    ]


def _breakpoint_cell(row: Fit) -> str:
    if row.breakpoint is None:
        return "cannot tell" if row.breakpoint_p is None else "none seen"
    found = row.breakpoint
    return f"at {found.at:g}: {found.beta_before:.2f}, then {found.beta_after:.2f}"
