"""``wattlaw cancel``."""

import sys

from wattlaw.cli.common.options import StoreArgument
from wattlaw.common.errors import NotAvailable
from wattlaw.common.terminal import print_note
from wattlaw.running import run_status
from wattlaw.store.store import Store


def cancel(store: StoreArgument) -> int:
    """Cancel the active runs of a store and its Slurm jobs."""
    cancelled = run_status.cancel(Store.existing(store))
    if cancelled.jobs:
        jobs = f"{cancelled.jobs} job(s) cancelled"
    else:
        jobs = "no job was cancelled" if cancelled.errors else "no job was in the queue"
    runs = f"{cancelled.runs} run(s) marked as interrupted"
    if cancelled.jobs > cancelled.runs:
        runs += "; the active 'wattlaw run' marks the others"
    print(f"{store}: {jobs}; {runs}. The same 'wattlaw run' resumes them.")
    if cancelled.left:
        print(
            f"{cancelled.left} still active; check with 'wattlaw status {store}'", file=sys.stderr
        )
    for error in cancelled.errors:
        print_note(f"cannot cancel the jobs of a queue: {error}")
    if cancelled.errors:
        return NotAvailable.exit_code
    return 1 if cancelled.left else 0
