"""``wattlaw import``: measurements made elsewhere become runs of a store."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from wattlaw.errors import BadInput
from wattlaw.store.fields import parse_map
from wattlaw.store.imported import write_runs
from wattlaw.store.importing import Refused, parse_runs, slug
from wattlaw.store.rows import read_rows
from wattlaw.store.store import Store
from wattlaw.text import quote

app = typer.Typer()
#: More bad rows than these are counted, not told one by one.
_TOLD = 1000


@app.command("import")
def import_(
    table: Annotated[
        Path, typer.Argument(metavar="TABLE", help="A .csv, .parquet or .jsonl file.")
    ],
    mapping: Annotated[
        str,
        typer.Option(
            "--map",
            metavar="FIELD=COLUMN,...",
            help="Column of each field; FIELD=@VALUE sets a value for all rows.",
        ),
    ],
    store: Annotated[Path, typer.Option(help="Results folder.")] = Path("wattlaw-store"),
    workload: Annotated[
        str | None,
        typer.Option(help="Name of the workload, if no column contains it."),
    ] = None,
    hardware: Annotated[
        str | None,
        typer.Option(help="Name of the hardware, if no column contains it."),
    ] = None,
    study: Annotated[
        str | None,
        typer.Option(help="Name of the study. Default: name of the file."),
    ] = None,
) -> int:
    """Import measurements from a table into a store."""
    fields = parse_map(mapping, {"workload": workload, "hardware": hardware})
    name = slug(table.stem) or "imported" if study is None else study
    if slug(name) != name or not name:
        raise BadInput(
            f"--study {quote(name)}: allowed: letters, digits, '.', '_' and '-', at most 100"
        )
    found = read_rows(table, {*fields.columns.values()})
    fields = fields.checked(found.columns)
    source = "".join(c if c.isprintable() else "?" for c in table.name)
    runs, refused = parse_runs(found.rows, fields, source, name)
    if not runs:
        _tell(table, found.place, refused)
        raise BadInput(f"{table}: none of its {len(found.rows)} rows can be imported")
    home = Store(store)
    home.create()
    written = write_runs(home, runs)
    refused += written.refused
    _tell(table, found.place, refused)
    if written.others:
        print(
            f"wattlaw: {store} has {written.others} other runs imported from a file of this name; "
            "if the mapping has changed since, they may tell of the same measurements",
            file=sys.stderr,
        )
    print(
        f"{table}: {written.added} runs added to {store}, {written.unchanged} were there already, "
        f"{len(refused)} rows kept out"
    )
    return 1 if refused else 0


def _tell(table: Path, place: str, refused: Sequence[Refused]) -> None:
    """Say on stderr which rows are kept out, and why."""
    for one in sorted(refused, key=lambda row: row.line)[:_TOLD]:
        print(f"wattlaw: {table}: {place} {one.line}: {one.why}", file=sys.stderr)
    if len(refused) > _TOLD:
        print(f"wattlaw: {table}: and {len(refused) - _TOLD:,} rows more", file=sys.stderr)
