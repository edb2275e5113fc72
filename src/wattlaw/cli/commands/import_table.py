"""``wattlaw import``."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from wattlaw.cli.common.options import option
from wattlaw.errors import BadInput
from wattlaw.store.fields import parse_map
from wattlaw.store.importing import parse_runs, slug
from wattlaw.store.imports import RejectedRow, write_runs
from wattlaw.store.rows import read_rows
from wattlaw.store.store import Store
from wattlaw.terminal import print_note
from wattlaw.text import quote

#: At most this number of invalid rows is printed; the others are counted.
_MAX_ROWS = 1000


def import_table(
    table: Annotated[
        Path, typer.Argument(metavar="TABLE", help="A .csv, .parquet or .jsonl file.")
    ],
    mapping: Annotated[
        str,
        option(
            "FIELD=COLUMN,...",
            "Column of each field; FIELD=@VALUE sets a value for all rows.",
            "--map",
        ),
    ],
    store: Annotated[Path, typer.Option(help="Results folder.")] = Path("wattlaw-store"),
    workload: Annotated[
        str | None, typer.Option(help="Name of the workload, if no column contains it.")
    ] = None,
    hardware: Annotated[
        str | None, typer.Option(help="Name of the hardware, if no column contains it.")
    ] = None,
    study: Annotated[
        str | None, typer.Option(help="Name of the study. Default: name of the file.")
    ] = None,
) -> int:
    """Import measurements from a table into a store."""
    fields = parse_map(mapping, {"workload": workload, "hardware": hardware})
    name = slug(table.stem) or "imported" if study is None else study
    if slug(name) != name or not name:
        raise BadInput(
            f"--study: {quote(name)} is not valid; expected at most 100 letters, digits, '.', '_' "
            "and '-'"
        )
    rows = read_rows(table, {*fields.columns.values()})
    fields.require_columns(rows.columns)
    source = "".join(c if c.isprintable() else "?" for c in table.name)
    runs, invalid = parse_runs(rows.rows, fields, source, name)
    if not runs:
        _print_invalid(table, rows.unit, invalid)
        raise BadInput(f"{table}: none of its {len(rows.rows)} rows can be imported")
    target = Store(store)
    target.create()
    written = write_runs(target, runs)
    invalid += written.rejected
    _print_invalid(table, rows.unit, invalid)
    if written.other_runs:
        print_note(
            f"{store} has {written.other_runs} other runs from a file of this name; "
            "if the mapping has changed, they may be the same measurements",
        )
    print(
        f"{table}: {written.added} runs added to {store}, {written.unchanged} already "
        f"there, {len(invalid)} rows skipped"
    )
    return 1 if invalid else 0


def _print_invalid(table: Path, place: str, rows: Sequence[RejectedRow]) -> None:
    """Print on standard error which rows are skipped, and why."""
    for row in sorted(rows, key=lambda row: row.line)[:_MAX_ROWS]:
        print_note(f"{table}: {place} {row.line}: {row.reason}")
    if len(rows) > _MAX_ROWS:
        print_note(f"{table}: {len(rows) - _MAX_ROWS:,} more rows skipped")
