"""``wattlaw import``."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from wattlaw.api.imports import read_import
from wattlaw.cli.common.options import option
from wattlaw.common import registry
from wattlaw.common.terminal import print_note
from wattlaw.importing.importer import GROUP

_FORMATS = ", ".join(registry.names(GROUP))
#: At most this number of rejected rows is printed; the others are counted.
_MAX_ROWS = 5


def import_files(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", help="Files of other tools, a table, or folders of them."
        ),
    ],
    mapping: Annotated[
        str | None,
        option(
            "FIELD=COLUMN,...",
            "Column of each field of a table; FIELD=@VALUE sets a value, such as gpus=@4.",
            "--map",
        ),
    ] = None,
    store: Annotated[Path, typer.Option(help="Results folder.")] = Path("wattlaw-store"),
    from_format: Annotated[
        str | None,
        option("FORMAT", f"Format of all files, instead of detecting it: {_FORMATS}.", "--from"),
    ] = None,
    workload: Annotated[
        str | None, typer.Option(help="Name of the workload, if no column contains it.")
    ] = None,
    hardware: Annotated[
        str | None, typer.Option(help="Name of the hardware, if no column contains it.")
    ] = None,
    study: Annotated[
        str | None, typer.Option(help="Name of the study. Default: name of the file.")
    ] = None,
    timezone: Annotated[
        str | None,
        option("ZONE", "Zone of local times, such as Europe/Berlin or +01:00. Default: UTC."),
    ] = None,
    window: Annotated[
        list[str] | None, option("START..END", "A window of a time series; may be repeated.")
    ] = None,
    pattern: Annotated[
        str | None, option("REGEX", "Lines of a log that end a window of a time series.")
    ] = None,
    device: Annotated[
        list[str] | None, option("ID", "A device of a time series that counts; default: all.")
    ] = None,
) -> int:
    """Import files of other tools, and any table."""
    read = read_import(
        files, format=from_format, map=mapping, workload=workload, hardware=hardware, study=study,
        timezone=timezone, windows=window or (), pattern=pattern, devices=device or (),
    )  # fmt: skip
    # What the files are, and what of them is left out, before anything is written.
    for file in read.files:
        print(f"{file.path}: {file.description}")
        for note in (*file.notes, *file.left_out):
            print_note(f"{file.path}: {note}")
        _print_rows(str(file.path), file.rejected)
    for line in read.left_out:
        print_note(line)
    for note in read.notes:
        print(note)
    result = read.write(store)
    _print_rows(str(files[0]), result.changed)
    if result.other_runs:
        print_note(
            f"{store} has {result.other_runs} other runs from a file of this name; "
            "if the mapping has changed, they may be the same measurements"
        )
    print(result)
    return 1 if result.rejected else 0


def _print_rows(path: str, rows: Sequence[str]) -> None:
    for row in rows[:_MAX_ROWS]:
        print_note(f"{path}: {row}")
    if len(rows) > _MAX_ROWS:
        print_note(f"{path}: and {len(rows) - _MAX_ROWS:,} more rows rejected")
