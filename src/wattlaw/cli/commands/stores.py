"""Commands on the runs of a store: status, cancel and import."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from wattlaw.api.progress import title
from wattlaw.cli.console import Console, make_table
from wattlaw.cli.options import JsonOption, StoreArgument, option
from wattlaw.errors import BadInput, NotAvailable
from wattlaw.launch import planning, run_status
from wattlaw.store.fields import parse_map
from wattlaw.store.importing import RejectedRow, parse_runs, slug, write_runs
from wattlaw.store.rows import read_rows
from wattlaw.store.store import Store
from wattlaw.terminal import print_note
from wattlaw.text import quote

app = typer.Typer()
#: At most so many invalid rows are printed; the others are counted.
_MOST_ROWS = 1000


@app.command()
def status(store: StoreArgument, as_json: JsonOption = False) -> int:
    """Show the status of each run."""
    opened = Store.existing(store)
    runs, errors = run_status.run_statuses(opened)
    scheduler_error = "; ".join(errors) or None
    counts = planning.count_statuses(run.state for run in runs)
    unfinished = [run for run in runs if run.state not in ("done", "planned")]
    if as_json:
        rows = [
            {
                "run_id": run.run_id,
                "status": run.state,
                "reason": run.reason,
                "job": {"id": run.job.id, "state": run.job.state, "reason": run.job.reason}
                if run.job
                else None,
                "log": str(opened.folder(run.run_id).log_path),
            }
            for run in unfinished
        ]
        summary = {"store": str(store), "runs": len(runs), "counts": counts, "not_done": rows}
        print(json.dumps(summary | {"scheduler": scheduler_error}))
        return 0
    console = Console()
    listed = ", ".join(f"{count} {state}" for state, count in counts.items()) or "none yet"
    console.print(f"{store}: {len(runs)} runs: {listed}")
    if scheduler_error is not None:
        console.print(f"The state of the queue is unknown: {scheduler_error}", soft_wrap=True)
    if unfinished:
        cells = [
            (run.state, title(run.record) if run.record else run.run_id, run.reason or "-")
            for run in unfinished
        ]
        console.print(make_table(("status", "run", "reason"), cells))
        console.print(f"Logs: {store}/runs/<run id>/log.txt")
    return 0


@app.command()
def cancel(store: StoreArgument) -> int:
    """Cancel the active runs of a store, including queued Slurm jobs."""
    cancelled = run_status.cancel(Store.existing(store))
    if cancelled.jobs:
        jobs = f"{cancelled.jobs} job(s) cancelled"
    else:
        jobs = "no job was cancelled" if cancelled.troubles else "no job was in the queue"
    runs = f"{cancelled.runs} run(s) marked as interrupted"
    if cancelled.jobs > cancelled.runs:
        runs += "; the active 'wattlaw run' marks the others"
    print(f"{store}: {jobs}; {runs}. The same 'wattlaw run' resumes them.")
    if cancelled.left:
        print(
            f"{cancelled.left} still active; check with 'wattlaw status {store}'", file=sys.stderr
        )
    for error in cancelled.troubles:
        print_note(f"cannot cancel the jobs of a queue: {error}")
    if cancelled.troubles:
        return NotAvailable.exit_code
    return 1 if cancelled.left else 0


@app.command("import")
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
    for row in sorted(rows, key=lambda row: row.line)[:_MOST_ROWS]:
        print_note(f"{table}: {place} {row.line}: {row.reason}")
    if len(rows) > _MOST_ROWS:
        print_note(f"{table}: {len(rows) - _MOST_ROWS:,} more rows skipped")
