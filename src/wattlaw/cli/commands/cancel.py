"""``wattlaw cancel``."""

import sys

import typer

from wattlaw.cli.common.options import StoreArgument
from wattlaw.errors import NotAvailable
from wattlaw.launch.cancel import cancel as cancel_store
from wattlaw.store.store import Store

app = typer.Typer()


@app.command()
def cancel(store: StoreArgument) -> int:
    """Cancel the active runs of a store, including queued Slurm jobs."""
    ended = cancel_store(Store.existing(store))
    none = "no job was cancelled" if ended.troubles else "no job was in the queue"
    jobs = f"{ended.jobs} job(s) cancelled" if ended.jobs else none
    noted = f"{ended.runs} run(s) noted as interrupted"
    if ended.jobs > ended.runs:
        noted += ", the others by the 'wattlaw run' that watches them"
    print(f"{store}: {jobs}; {noted}. The same 'wattlaw run' takes them up again.")
    if ended.left:
        print(f"{ended.left} are still ending; look with 'wattlaw status {store}'", file=sys.stderr)
    for trouble in ended.troubles:
        print(f"wattlaw: a queue is not emptied: {trouble}", file=sys.stderr)
    if ended.troubles:
        return NotAvailable.exit_code
    return 1 if ended.left else 0
