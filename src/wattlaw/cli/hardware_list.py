"""``simulate --list-hardware``: what can be simulated without a file of one's own."""

import json

from rich import box
from rich.table import Table

from wattlaw.cli.console import Console
from wattlaw.simulator import library


def show(hardware: str | None, *, as_json: bool) -> int:
    """List all known hardware, or every number of one with its source."""
    if hardware is not None:
        return _show_one(hardware, as_json=as_json)
    names = [*library.cluster_names(), *library.gpu_names()]
    rows = []
    for name in names:
        cluster = library.read_cluster(name)
        node, gpu = cluster.node, cluster.gpu
        rows.append(
            {
                "name": name,
                "what": cluster.name if name in library.cluster_names() else f"one {gpu.name}",
                "gpu": gpu.name,
                "nodes": cluster.nodes,
                "gpus_per_node": node.gpus,
                "precisions": sorted(gpu.peak_tflops),
                "min_limit_w": gpu.min_limit_w,
                "max_w": gpu.max_w,
                "min_clock_mhz": gpu.min_clock_mhz,
                "max_clock_mhz": gpu.max_clock_mhz,
            }
        )
    if as_json:
        print(json.dumps(rows))
        return 0
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("name", "what", "GPUs per node", "cap W", "clock MHz", "precisions"):
        table.add_column(column, overflow="fold", no_wrap=column == "name")
    for row in rows:
        table.add_row(
            str(row["name"]),
            str(row["what"]),
            f"{row['gpus_per_node']} x {row['nodes']} nodes",
            f"{row['min_limit_w']:g}-{row['max_w']:g}",
            f"{row['min_clock_mhz']:g}-{row['max_clock_mhz']:g}",
            ", ".join(row["precisions"]),  # type: ignore[arg-type]
        )
    console = Console()
    console.print(table)
    console.print(
        "Numbers and sources of one: wattlaw simulate --list-hardware --hardware NAME",
    )
    return 0


def _show_one(hardware: str, *, as_json: bool) -> int:
    cluster = library.read_cluster(hardware)
    entries = library.describe(cluster)
    if as_json:
        print(json.dumps([one._asdict() for one in entries]))
        return 0
    table = Table(title=cluster.name, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("number")
    table.add_column("value", justify="right")
    table.add_column("source", overflow="fold")
    for one in entries:
        table.add_row(one.key, f"{one.value:g} {one.unit}".strip(), one.source)
    Console().print(table)
    return 0
