"""``import``: measurements made elsewhere become runs of a store."""

import sys
from collections.abc import Sequence
from pathlib import Path

from wattlaw.errors import BadInput
from wattlaw.store.fields import parse_map
from wattlaw.store.import_writer import write_runs
from wattlaw.store.importing import RejectedRow, parse_runs, slug
from wattlaw.store.rows import read_rows
from wattlaw.store.store import Store
from wattlaw.text import quote

#: More bad rows than these are counted, not told one by one.
_TOLD = 1000


def import_table(
    table: Path,
    mapping: str,
    store: Path,
    *,
    workload: str | None,
    hardware: str | None,
    study: str | None,
) -> int:
    """Import a table; return 0, or 1 if some rows were kept out.

    Raises
    ------
    BadInput
        The mapping does not fit the table, or no row can be a run.
    """
    fields = parse_map(mapping, {"workload": workload, "hardware": hardware})
    name = slug(table.stem) or "imported" if study is None else study
    if slug(name) != name or not name:
        raise BadInput(
            f"--study {quote(name)}: allowed: letters, digits, '.', '_' and '-', at most 100"
        )
    found = read_rows(table, {*fields.columns.values()})
    fields.require_columns(found.columns)
    source = "".join(c if c.isprintable() else "?" for c in table.name)
    runs, refused = parse_runs(found.rows, fields, source, name)
    if not runs:
        _tell(table, found.unit, refused)
        raise BadInput(f"{table}: none of its {len(found.rows)} rows can be imported")
    home = Store(store)
    home.create()
    written = write_runs(home, runs)
    refused += written.rejected
    _tell(table, found.unit, refused)
    if written.other_runs:
        print(
            f"wattlaw: {store} has {written.other_runs} other runs imported from a file of this "
            "name; if the mapping has changed since, they may be the same measurements",
            file=sys.stderr,
        )
    print(
        f"{table}: {written.added} runs added to {store}, {written.unchanged} were there already, "
        f"{len(refused)} rows kept out"
    )
    return 1 if refused else 0


def _tell(table: Path, place: str, refused: Sequence[RejectedRow]) -> None:
    """Say on stderr which rows are kept out, and why."""
    for one in sorted(refused, key=lambda row: row.line)[:_TOLD]:
        print(f"wattlaw: {table}: {place} {one.line}: {one.reason}", file=sys.stderr)
    if len(refused) > _TOLD:
        print(f"wattlaw: {table}: and {len(refused) - _TOLD:,} rows more", file=sys.stderr)
