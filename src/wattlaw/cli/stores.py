"""``status``: how the runs of a store stand."""

import json
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from wattlaw.cli.progress import title
from wattlaw.launch import planning
from wattlaw.store.record import RunRecord
from wattlaw.store.store import Store


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
