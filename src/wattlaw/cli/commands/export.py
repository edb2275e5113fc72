"""``wattlaw export``."""

from pathlib import Path
from typing import Annotated

import typer

from wattlaw.api import results
from wattlaw.api.store_reports import EXPORTS
from wattlaw.cli.common import options as opts
from wattlaw.common import registry
from wattlaw.exporting import GROUP


def export(
    store: opts.StoreArgument,
    what: Annotated[
        str,
        typer.Argument(
            metavar="TABLE|FORMAT", help=f"{', '.join((*EXPORTS, *registry.names(GROUP)))}."
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            help="A .csv, .parquet or .jsonl file; of a FORMAT, one with its ending.",
        ),
    ],
    strict: opts.StrictOption = False,
) -> int:
    """Write a table, an archive or another format to a file."""
    exported = results.open(store, strict=strict).export(what, output)
    print(f"{', '.join(map(str, exported.files))}: {exported.rows} rows of {what}")
    return 0
