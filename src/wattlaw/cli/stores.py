"""``status`` and ``cancel``: how the runs of a store stand, and the end of them."""

import json
import sys
from pathlib import Path

from rich.table import Table

from wattlaw.cli.console import Console
from wattlaw.cli.progress import title
from wattlaw.errors import NotAvailable
from wattlaw.launch import planning, run_status
from wattlaw.launch.cancel import cancel as cancel_store
from wattlaw.store.store import Store


def status(path: Path, *, as_json: bool) -> int:
    """Show counts by status and the reasons of what did not end well."""
    store = Store.existing(path)
    runs, troubles = run_status.run_statuses(store)
    trouble = "; ".join(troubles) or None
    counts = planning.count_statuses(one.state for one in runs)
    shown = [one for one in runs if one.state not in ("done", "planned")]
    if as_json:
        rows = [
            {
                "run_id": one.run_id,
                "status": one.state,
                "reason": one.reason,
                "job": {"id": one.job.id, "state": one.job.state, "reason": one.job.reason}
                if one.job
                else None,
                "log": str(store.folder(one.run_id).log_path),
            }
            for one in shown
        ]
        told = {"store": str(path), "runs": len(runs), "counts": counts, "not_done": rows}
        print(json.dumps(told | {"scheduler": trouble}))
        return 0
    console = Console()
    words = ", ".join(f"{count} {state}" for state, count in counts.items()) or "none yet"
    console.print(f"{path}: {len(runs)} runs: {words}")
    if trouble is not None:
        why = f"The queue is not known: {trouble}"
        console.print(why, soft_wrap=True)
    if shown:
        table = Table()
        for column in ("status", "run", "reason"):
            table.add_column(column, overflow="fold")
        for one in shown:
            name = title(one.record) if one.record is not None else one.run_id
            table.add_row(one.state, name, one.reason or "-")
        console.print(table)
        console.print(f"Logs: {path}/runs/<run id>/log.txt")
    return 0


def cancel(path: Path) -> int:
    """End what a store has under way."""
    ended = cancel_store(Store.existing(path))
    none = "no job was cancelled" if ended.troubles else "no job was in the queue"
    jobs = f"{ended.jobs} job(s) cancelled" if ended.jobs else none
    noted = f"{ended.runs} run(s) noted as interrupted"
    if ended.jobs > ended.runs:
        noted += ", the others by the 'wattlaw run' that watches them"
    print(f"{path}: {jobs}; {noted}. The same 'wattlaw run' takes them up again.")
    if ended.left:
        print(f"{ended.left} are still ending; look with 'wattlaw status {path}'", file=sys.stderr)
    for trouble in ended.troubles:
        print(f"wattlaw: a queue is not emptied: {trouble}", file=sys.stderr)
    if ended.troubles:
        return NotAvailable.exit_code
    return 1 if ended.left else 0
