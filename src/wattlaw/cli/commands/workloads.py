"""``wattlaw workloads``: list, options and synthetic data of the workloads."""

import json
from pathlib import Path
from typing import Annotated

import typer

from wattlaw.cli.common.console import Console, make_table
from wattlaw.cli.common.options import JsonOption
from wattlaw.workloads import catalogue

app = typer.Typer(invoke_without_command=True)


@app.callback()
def workloads(context: typer.Context, as_json: JsonOption = False) -> int:
    """List the workloads."""
    if context.invoked_subcommand is not None:
        return 0
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
    cells = [(e.name, f"{e.parameters:,}", e.metric, e.summary) for e in entries]
    columns = ("name", "parameters", "metric", "description")
    console = Console()
    console.print(make_table(columns, cells, right=("parameters",)))
    console.print("Options: wattlaw workloads show NAME")
    return 0


@app.command("show")
def workloads_show(name: Annotated[str, typer.Argument(metavar="NAME", help="Workload.")]) -> int:
    """Show the options of a workload."""
    entry = catalogue.entry(name)
    console = Console()
    console.print(f"{entry.name}: {entry.summary}")
    fields = entry.options.model_fields.items()
    cells = [(key, json.dumps(field.default), field.description or "") for key, field in fields]
    console.print(make_table(("option", "default", "allowed"), cells))
    return 0


@app.command("make-data")
def workloads_make_data(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Workload that reads files.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="New or empty folder.")],
    size: Annotated[int, typer.Option(min=1, help="Training samples (weather: time steps).")],
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Random seed.")] = 0,
) -> int:
    """Write small synthetic data for a workload that reads files."""
    catalogue.make_data(name, folder, size, seed)
    files = [path for path in folder.rglob("*") if path.is_file()]
    total = sum(path.stat().st_size for path in files)
    print(f"{folder}: {len(files)} files, {total:,} bytes, synthetic data for {name}, seed {seed}")
    return 0
