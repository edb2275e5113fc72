"""``wattlaw export``."""

from pathlib import Path
from typing import Annotated, Literal

import pandas as pd
import pyarrow as pa
import typer

from wattlaw.analysis.aggregate import aggregate
from wattlaw.analysis.laws.fits import Fits
from wattlaw.analysis.metrics import run_metrics
from wattlaw.analysis.series import fit_series, scaling_series
from wattlaw.cli.common.options import RawOption, StoreArgument
from wattlaw.errors import BadInput
from wattlaw.store.statistics import statistics
from wattlaw.store.store import Store
from wattlaw.store.tables import KINDS, read_stores, write_table

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
    kind = output.suffix.lower()
    if kind not in KINDS:
        raise BadInput(f"{output}: unknown file type {kind!r}; expected {', '.join(KINDS)}")
    found = Store.existing(store)
    if table == "fits":
        fits = fit_series(scaling_series(run_metrics(*read_stores([store]))))
        rows = pa.Table.from_pandas(_flat(fits), preserve_index=False)
    elif table == "statistics":
        rows = pa.Table.from_pandas(statistics(found), preserve_index=False)
    elif table in ("metrics", "settings"):
        metrics = run_metrics(*read_stores([store]))
        frame = metrics if table == "metrics" else aggregate(metrics)
        rows = pa.Table.from_pandas(frame, preserve_index=False)
    else:
        rows = found.arrow(table)
    output.parent.mkdir(parents=True, exist_ok=True)
    write_table(output, rows, raw=raw)
    print(f"{output}: {len(rows)} rows of {table}")
    return 0


def _flat(fits: Fits) -> pd.DataFrame:
    """Return a row per series; what is nested in JSON becomes columns such as ``bend.at``."""
    rows = [
        {name: value for name, value in row.items() if value is not None or name not in _NESTED}
        for row in fits.as_json()
    ]
    flat = pd.json_normalize(rows)
    return flat.astype({"n": "Int64"}) if rows else flat


_NESTED = ("trusted", "diagnostics", "selected", "breakpoint")
