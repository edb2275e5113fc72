"""``status`` and ``workloads``: what there is."""

import json
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from wattlaw.cli.progress import title
from wattlaw.launch import planning
from wattlaw.store.record import RunRecord
from wattlaw.store.store import Store
from wattlaw.workloads import catalogue


def status(path: Path, *, as_json: bool) -> int:
    """Show counts by status and the reasons of what did not end well."""
    store = Store.existing(path)
    runs = []
    for folder in store.folders():
        record = folder.read()
        if record is not None:
            runs.append((folder.status(record), record))
    counts = planning.counted(state for state, _ in runs)
    troubled = [(state, run) for state, run in runs if state not in ("done", "planned")]
    if as_json:
        rows = [
            {
                "run_id": run.run_id,
                "status": state,
                "reason": run.reason,
                "log": str(_log(store, run)),
            }
            for state, run in troubled
        ]
        print(
            json.dumps({"store": str(path), "runs": len(runs), "counts": counts, "not_done": rows})
        )
        return 0
    console = Console()
    words = ", ".join(f"{count} {state}" for state, count in counts.items()) or "none yet"
    console.print(f"{path}: {len(runs)} runs: {words}", highlight=False, markup=False)
    if troubled:
        table = Table()
        for column in ("status", "run", "reason"):
            table.add_column(column, overflow="fold")
        for state, run in troubled:
            table.add_row(state, escape(title(run)), escape(run.reason or "-"))
        console.print(table)
        console.print(f"Logs: {path}/runs/<run id>/log.txt", highlight=False, markup=False)
    return 0


def _log(store: Store, run: RunRecord) -> Path:
    return store.folder(run.run_id).log_path


def workloads(*, as_json: bool) -> int:
    """List what can be trained, with its options."""
    entries = catalogue.entries()
    if as_json:
        rows = [
            {
                "name": entry.name,
                "parameters": entry.parameters,
                "metric": entry.metric,
                "summary": entry.summary,
                "options": {
                    name: {"default": field.default, "allowed": field.description}
                    for name, field in entry.options.model_fields.items()
                },
            }
            for entry in entries
        ]
        print(json.dumps(rows))
        return 0
    table = Table()
    for column in ("name", "parameters", "metric", "what", "options (default)"):
        table.add_column(column, justify="right" if column == "parameters" else "left")
    for entry in entries:
        fields = entry.options.model_fields.items()
        options = ", ".join(f"{name} ({field.default})" for name, field in fields)
        table.add_row(
            entry.name, f"{entry.parameters:,}", entry.metric, entry.summary, escape(options)
        )
    Console().print(table)
    return 0
