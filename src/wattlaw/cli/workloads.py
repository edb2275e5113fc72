"""``workloads``: what can be trained, small data for it, and what it asks of hardware."""

import json
from pathlib import Path

from rich.table import Table

from wattlaw.cli.console import Console
from wattlaw.errors import BadInput
from wattlaw.files import write_text
from wattlaw.simulator.profile import WorkloadProfile
from wattlaw.study.model import WorkloadSpec
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
        table.add_row(entry.name, f"{entry.parameters:,}", entry.metric, entry.summary)
    console = Console()
    console.print(table)
    console.print("Options of one: wattlaw workloads show NAME")
    return 0


def show(name: str) -> int:
    """Show the options of one workload."""
    entry = catalogue.entry(name)
    console = Console()
    console.print(f"{entry.name}: {entry.summary}")
    table = Table()
    for column in ("option", "default", "allowed"):
        table.add_column(column, overflow="fold")
    for option, field in entry.options.model_fields.items():
        table.add_row(option, json.dumps(field.default), field.description or "")
    console.print(table)
    return 0


def make_data(name: str, folder: Path, size: int, seed: int) -> int:
    """Write a small data set."""
    catalogue.make_data(name, folder, size, seed)
    files = [path for path in folder.rglob("*") if path.is_file()]
    total = sum(path.stat().st_size for path in files)
    print(f"{folder}: {len(files)} files, {total:,} bytes, made for {name} from seed {seed}")
    return 0


def profile(name: str, options: str, out: Path | None) -> int:
    """Count what a workload asks of any hardware; print it as JSON or write it to a file."""
    try:
        given = json.loads(options)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise BadInput(
            f"--options: given {options!r:.80}; allowed: a JSON object such as "
            "'{\"image_size\": 160}'"
        )
    catalogue.entry(name)  # a name that there is fits a specification
    spec = catalogue.reduced(WorkloadSpec(name=name, options=given))

    from wattlaw.training.profiling.profile import measure_profile

    counted = measure_profile(spec)
    text = _text(counted)
    if out is None:
        print(text, end="")
        return 0
    write_text(out, text)
    kernels = sum(row.count for row in counted.kernels)
    print(
        f"{out}: {name}, {counted.parameters:,} parameters, {kernels:,.0f} kernels per step, "
        f"{counted.flops_per_sample:.4g} operations per sample"
    )
    return 0


def _text(profile: WorkloadProfile) -> str:
    """Return profile as JSON with a line for each key, and one for each row of kernels."""
    data = profile.model_dump(mode="json")
    rows = ",\n".join(f"    {json.dumps(row)}" for row in data.pop("kernels"))
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in data.items()]
    return "{\n" + ",\n".join([*lines, f'  "kernels": [\n{rows}\n  ]']) + "\n}\n"
