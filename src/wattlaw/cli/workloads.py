"""``workloads``: what can be trained, and small data for it."""

import json
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from wattlaw.workloads import catalogue


def workloads(*, as_json: bool) -> int:
    """List what can be trained."""
    entries = catalogue.entries()
    if as_json:
        rows = [
            {
                "name": entry.name,
                "parameters": entry.parameters,
                "metric": entry.metric,
                "better": entry.better,
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
    for column in ("name", "parameters", "metric", "what"):
        table.add_column(column, justify="right" if column == "parameters" else "left")
    for entry in entries:
        table.add_row(entry.name, f"{entry.parameters:,}", entry.metric, escape(entry.summary))
    console = Console()
    console.print(table)
    console.print("Options of one: wattlaw workloads show NAME", highlight=False)
    return 0


def show(name: str) -> int:
    """Show the options of one workload."""
    entry = catalogue.entry(name)
    console = Console()
    console.print(f"{entry.name}: {escape(entry.summary)}", highlight=False)
    table = Table()
    for column in ("option", "default", "allowed"):
        table.add_column(column, overflow="fold")
    for option, field in entry.options.model_fields.items():
        table.add_row(option, escape(json.dumps(field.default)), escape(field.description or ""))
    console.print(table)
    return 0


def make_data(name: str, folder: Path, size: int, seed: int) -> int:
    """Write a small data set."""
    catalogue.make_data(name, folder, size, seed)
    files = [path for path in folder.rglob("*") if path.is_file()]
    total = sum(path.stat().st_size for path in files)
    print(f"{folder}: {len(files)} files, {total:,} bytes, made for {name} from seed {seed}")
    return 0
