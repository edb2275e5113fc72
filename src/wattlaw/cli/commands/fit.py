"""``wattlaw fit``."""

import json
from pathlib import Path
from typing import Annotated

import typer

from wattlaw.analysis.laws.fitting import Fits
from wattlaw.analysis.metrics.comparable_runs import batch_cautions
from wattlaw.api import results
from wattlaw.api.fits import fit as fit_file
from wattlaw.cli.common import options as opts
from wattlaw.cli.common.console import Console
from wattlaw.cli.common.options import option
from wattlaw.common.errors import BadInput, Refused
from wattlaw.common.formatting import plural
from wattlaw.common.terminal import print_note
from wattlaw.common.text import collapse_whitespace, shorten
from wattlaw.report.topics import scaling
from wattlaw.study.labels import group_label


def fit(
    source: Annotated[
        list[Path],
        typer.Argument(metavar="STORE|TABLE", help="Results folders, or one .csv or .jsonl file."),
    ],
    x: Annotated[str, typer.Option(help="Column with the number of workers.")] = "gpus",
    y: Annotated[
        str | None,
        option("COL", "Column to fit. Default: time_s of a store, epoch_time_s of a table."),
    ] = None,
    by: Annotated[
        str | None, option("COLS", "Columns that identify a series, separated by commas.")
    ] = None,
    energy_scope: opts.EnergyScopeOption = None,
    as_json: opts.JsonOption = False,
    strict: opts.StrictOption = False,
) -> int:
    """Fit scaling laws to stores or to a table.

    Each series gets the power law t = alpha * N^-beta, and a comparison with other laws.
    """
    columns = None if by is None else [name.strip() for name in by.split(",") if name.strip()]
    tables = [path for path in source if path.is_file()]
    if missing := [path for path in source if not path.exists()]:
        raise BadInput(f"{missing[0]}: no such file or store")
    if tables and len(source) > 1:
        raise BadInput(f"{tables[0]}: is a table; allowed: one table, or one or more stores")
    if tables and energy_scope is not None:
        raise BadInput(f"--energy-scope: {source[0]} is a table; allowed: stores")
    try:
        if tables:
            fits = fit_file(source[0], x, y := y or "epoch_time_s", columns or ())
            if fits.left_out:
                rows = plural(fits.left_out, "row")
                print_note(f"{source[0]}: left out {rows} without {x} or {y}")
        else:
            opened = results.open(*source, strict=strict)
            if opened.origins_label:
                print_note(f"all runs are {opened.origins_label}: nothing was measured")
            for caution in batch_cautions(opened.metrics):
                print_note(str(caution))
            fits = opened.fit(x, y or "time_s", columns, energy_scope=energy_scope)
    except BadInput as error:
        text = str(error)
        prefix = "" if text.startswith(str(source[0])) else f"{source[0]}: "
        raise BadInput(f"{prefix}{text}") from None
    _show(fits, as_json=as_json)
    if fits.laws:
        return 0
    if fits.refusals:
        return Refused.exit_code
    raise Refused(f"{source[0]}: nothing to fit: no done runs differ in {x} alone")


def _show(fits: Fits, *, as_json: bool) -> None:
    for group, reason in fits.refusals:
        text = f"no law for {shorten(group_label(group)) or 'the table'}: {reason}"
        print_note(collapse_whitespace(text))
    if as_json:
        print(json.dumps(fits.to_dict()["rows"], allow_nan=False))
        return
    console = Console()
    console.show(scaling.laws(fits))
    for line in scaling.breakpoints(fits.rows):
        console.print(line)
