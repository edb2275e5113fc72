"""``wattlaw status``."""

import json
from collections import Counter

from wattlaw.cli.common.console import Console, make_table
from wattlaw.cli.common.options import JsonOption, StoreArgument
from wattlaw.common import formatting as fmt
from wattlaw.running import planning, run_status
from wattlaw.store.store import Store


def status(store: StoreArgument, as_json: JsonOption = False) -> int:
    """Count runs by status and show why runs are not done."""
    opened = Store.existing(store)
    stored = run_status.store_status(opened)
    scheduler_error = "; ".join(stored.errors) or None
    counts = planning.count_statuses(stored.states)
    warnings = [{"code": code, "text": text} for code, text in stored.warnings]
    not_needed = [run.reason for run in stored.not_done if run.is_not_needed]
    unfinished = [run for run in stored.not_done if run.state != "planned"]
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
        summary = {
            "store": str(store), "runs": len(stored.states), "counts": counts, "not_done": rows,
            "not_needed": len(not_needed), "scheduler": scheduler_error, "warnings": warnings,
        }  # fmt: skip
        print(json.dumps(summary))
        return 0
    console = Console()
    listed = ", ".join(f"{count:,} {state}" for state, count in counts.items()) or "none yet"
    console.print(f"{store}: {fmt.plural(len(stored.states), 'run')}: {listed}")
    for reason, count in Counter(not_needed).items():
        console.print(
            f"{count} of the planned runs {'is' if count == 1 else 'are'} {reason}", soft_wrap=True
        )
    if scheduler_error is not None:
        console.print(f"The state of the queue is unknown: {scheduler_error}", soft_wrap=True)
    for warning in warnings:
        console.print(f"Warning: {warning['text']}", soft_wrap=True)
    if unfinished:
        cells = [(run.state, run.title or run.run_id, run.reason or "-") for run in unfinished]
        console.print(make_table(("status", "run", "reason"), cells))
        console.print(f"Logs: {store}/runs/<run id>/log.txt")
    return 0
