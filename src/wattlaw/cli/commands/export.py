"""``wattlaw export``."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from wattlaw.api import results
from wattlaw.cli.common.options import RawOption, StoreArgument

app = typer.Typer()
Table = Literal["runs", "epochs", "telemetry", "statistics", "metrics", "settings", "fits"]


@app.command()
def export(
    store: StoreArgument,
    table: Annotated[Table, typer.Argument(help="Table to write.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="A .csv, .parquet or .jsonl file.")
    ],
    raw: RawOption = False,
) -> int:
    """Write a table of a store to a file."""
    rows = results.open(store).export(table, output, raw=raw)
    print(f"{output}: {rows} rows of {table}")
    return 0
