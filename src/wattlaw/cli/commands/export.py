"""``wattlaw export``."""

from pathlib import Path
from typing import Annotated

import typer

from wattlaw.api import results
from wattlaw.api.store_reports import TableName
from wattlaw.cli.common import options as opts


def export(
    store: opts.StoreArgument,
    table: Annotated[TableName, typer.Argument(metavar="TABLE", help="Table to write.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="A .csv, .parquet or .jsonl file.")
    ],
    raw: opts.RawOption = False,
    strict: opts.StrictOption = False,
) -> int:
    """Write a table of a store to a file."""
    rows = results.open(store, strict=strict).export(table, output, raw=raw)
    print(f"{output}: {rows} rows of {table}")
    return 0
