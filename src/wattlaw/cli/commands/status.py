"""``wattlaw status``."""

import json

import typer
from rich.table import Table

from wattlaw.cli.common.console import Console
from wattlaw.cli.common.options import JsonOption, StoreArgument
from wattlaw.cli.common.progress import title
from wattlaw.launch import planning, run_status
from wattlaw.store.store import Store

app = typer.Typer()


@app.command()
def status(store: StoreArgument, as_json: JsonOption = False) -> int:
    """Show the status of each run."""
    home = Store.existing(store)
    runs, troubles = run_status.run_statuses(home)
    trouble = "; ".join(troubles) or None
    counts = planning.counted(one.state for one in runs)
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
                "log": str(home.folder(one.run_id).log_path),
            }
            for one in shown
        ]
        told = {"store": str(store), "runs": len(runs), "counts": counts, "not_done": rows}
        print(json.dumps(told | {"scheduler": trouble}))
        return 0
    console = Console()
    words = ", ".join(f"{count} {state}" for state, count in counts.items()) or "none yet"
    console.print(f"{store}: {len(runs)} runs: {words}")
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
        console.print(f"Logs: {store}/runs/<run id>/log.txt")
    return 0
