"""``wattlaw simulate --list-hardware``: the hardware that the package knows."""

import json

from rich import box
from rich.table import Table

from wattlaw.cli.common.console import Console
from wattlaw.simulator import library


def show(hardware: str | None, *, as_json: bool) -> int:
    """List the known hardware, or the parameters of a cluster with their sources."""
    if hardware is not None:
        return _show_parameters(hardware, as_json=as_json)
    names = [*library.cluster_names(), *library.gpu_names()]
    rows = []
    for name in names:
        cluster = library.read_cluster(name)
        node, gpu = cluster.node, cluster.gpu
        rows.append(
            {
                "name": name,
                "description": cluster.name
                if name in library.cluster_names()
                else f"one {gpu.name}",
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
    for column in ("name", "description", "GPUs per node", "cap W", "clock MHz", "precisions"):
        table.add_column(column, overflow="fold", no_wrap=column == "name")
    for row in rows:
        table.add_row(
            str(row["name"]),
            str(row["description"]),
            f"{row['gpus_per_node']} x {row['nodes']} nodes",
            f"{row['min_limit_w']:g}-{row['max_w']:g}",
            f"{row['min_clock_mhz']:g}-{row['max_clock_mhz']:g}",
            ", ".join(row["precisions"]),  # type: ignore[arg-type]
        )
    console = Console()
    console.print(table)
    console.print("Parameters and sources: wattlaw simulate --list-hardware --hardware NAME")
    return 0


def _show_parameters(hardware: str, *, as_json: bool) -> int:
    cluster = library.read_cluster(hardware)
    entries = library.describe(cluster)
    if as_json:
        print(json.dumps([entry._asdict() for entry in entries]))
        return 0
    table = Table(title=cluster.name, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("parameter")
    table.add_column("value", justify="right")
    table.add_column("source", overflow="fold")
    for entry in entries:
        table.add_row(entry.key, f"{entry.value:g} {entry.unit}".strip(), entry.source)
    Console().print(table)
    return 0
