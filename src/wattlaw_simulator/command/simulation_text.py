"""The text output of ``simulate``: one setting, a table of several, or the known hardware."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from wattlaw.analysis.advise.option import Quantity
from wattlaw.cli.common.console import Console, make_table
from wattlaw.common import formatting as fmt
from wattlaw.hardware import library
from wattlaw.hardware.cluster import Described
from wattlaw.report import tables
from wattlaw.study.labels import limit_label
from wattlaw_simulator.simulated_job import SimulatedJob

Row = Mapping[str, Any]

_BAR_WIDTH = 30
_PARTS = {
    "compute_s": "GPU kernels",
    "launch_s": "kernel launches by the host",
    "communication_s": "exposed communication",
    "slowest_s": "waiting for the slowest GPU",
    "input_s": "waiting for input",
}
_BOTTLENECKS = {
    "compute": "kernels", "launch": "host", "communication": "communication", "input": "input",
}  # fmt: skip
#: Units of the parameters of hardware, by how their keys end.
_UNITS = {
    "tflops": "TFLOP/s", "gb_s": "GB/s", "gb": "GB", "mhz": "MHz", "w": "W", "us": "us", "ms": "ms",
}  # fmt: skip
_LIMITS = {"power_limit_w": "power limit", "clock_limit_mhz": "clock limit"}


def show(rows: Sequence[Row], template: SimulatedJob) -> None:
    """Print one setting as text, or several as a table, after a line on how they were predicted."""
    console = Console()
    for warning in dict.fromkeys(text for row in rows for text in row["warnings"]):
        console.print(f"Warning: {warning}")
    row, fraction = rows[0], rows[0]["dataset_fraction"]
    part = "" if fraction == 1 else f" ({fraction:g} of the data)"
    console.print(
        f"{row['workload']} on {row['hardware']} ({template.cluster.gpu.name}), "
        f"{row['precision']}, {template.samples * fraction:,.0f} samples per epoch{part}"
    )
    numbers = " and ".join(template.cluster.calibrated)
    console.print(
        f"Simulated, calibrated. {numbers} of {template.cluster.name} were chosen to fit published "
        "results; all else is a default, and the error is unknown."
        if numbers
        else "Simulated, uncalibrated. The parameters are defaults; their error is unknown."
    )
    if len(rows) > 1:
        console.show(_sweep(rows))
    else:
        console.print(_setting(row))


def _bottleneck(row: Row) -> str:
    text = _BOTTLENECKS[row["bottleneck"]]
    limit = _LIMITS.get(row["limited_by"])
    if limit is None:
        return text
    # A limit that slows only hidden kernels costs no time.
    return f"{text} ({limit})" if row["bottleneck"] == "compute" else f"{text} (not the {limit})"


def _setting(row: Row) -> Table:

    def duration(name: str) -> str:
        return fmt.duration_text(row[name])

    def energy(name: str) -> str:
        return fmt.energy_text(row[name])

    limits = ", ".join(limit_label(name, row[name]) for name in _LIMITS)
    lines = [
        ("setting", f"{fmt.plural(row['gpus'], 'GPU')} on {fmt.plural(row['nodes'], 'node')}, "
         f"batch {row['global_batch']:,} ({row['local_batch']:,} each), {limits}"),
        ("one epoch", f"{duration('epoch_time_s')}, {fmt.number(row['samples_per_s'])} samples/s"),
        ("its energy", f"GPUs {energy('gpu_energy_per_epoch_j')}, CPUs "
         f"{energy('cpu_energy_per_epoch_j')}, DRAM {energy('dram_energy_per_epoch_j')}"),
        (f"training of {fmt.plural(row['epochs'], 'epoch')}", f"{duration('train_time_s')}, "
         f"{energy('energy_j')}, {fmt.work_text(row['gpu_hours'])}"),
        ("each GPU", f"{fmt.number(row['power_per_gpu_w'])} W, "
         f"{row['sm_clock_mhz']:,.0f} MHz, SM utilisation {fmt.percent(row['sm_util'], 2)}, memory "
         f"utilisation {fmt.percent(row['mem_util'], 2)}"),
    ]  # fmt: skip
    if row["eval_time_s"] is not None:
        lines.append(
            ("an evaluation", f"{duration('eval_time_s')}, GPUs {energy('eval_gpu_energy_j')}")
        )
    step_s = row["step_time_s"]
    lines += [("bottleneck", _bottleneck(row)),
              ("one step", f"{_ms(step_s)} (roofline: {_ms(row['roofline_s'])})")]  # fmt: skip
    for part, label in _PARTS.items():
        share = row[part] / step_s
        bar = "#" * round(_BAR_WIDTH * share)
        lines.append((f"  {label}", f"{_ms(row[part])}, {100 * share:.1f} %  {bar}"))
    if row["startup_s"]:
        lines.append(("start-up of an epoch", duration("startup_s")))
    return make_table(("", ""), lines, show_header=False)


def _ms(seconds: float) -> str:
    return f"{fmt.number(1e3 * seconds)} ms" if seconds < 10 else fmt.duration_text(seconds)


def _sweep(rows: Sequence[Row]) -> tables.Table | None:

    def amount(heading: str, name: str, units: fmt.Units) -> tables.Column:
        return tables.in_unit(heading, rows, lambda row: Quantity(row[name], None, None), units)

    columns = [
        tables.number("GPUs", "gpus", 9),
        *(tables.limit(name) for name in _LIMITS if any(row[name] is not None for row in rows)),
        tables.number("batch", "global_batch", 9),
        tables.text("memory", lambda row: None if row["fits_memory"] else "does not fit"),
        amount("epoch", "epoch_time_s", fmt.TIME_UNITS),
        tables.number("speedup", "speedup", 4),
        tables.number("efficiency", "parallel_efficiency", 2),
        tables.number("beta", "beta"),
        tables.number("W per GPU", "power_per_gpu_w"),
        amount("GPU energy", "gpu_energy_per_epoch_j", fmt.ENERGY_UNITS),
        amount("total energy", "energy_per_epoch_j", fmt.ENERGY_UNITS),
        tables.text("bottleneck", _bottleneck),
    ]
    return tables.build("sweep", "", columns, rows, max_rows=len(rows))


def show_hardware(hardware: str | None, *, as_json: bool) -> int:
    rows: list[dict[str, Any]]
    title = hint = ""
    if hardware is not None:
        cluster = library.read_cluster(hardware)
        rows, title = parameters(cluster), cluster.name
        columns = [
            tables.text("parameter", "key"),
            tables.Column("value", lambda row: f"{row['value']:g} {row['unit']}"),
            tables.text("source", "source"),
        ]
    else:
        rows = [_hardware_row(name) for name in (*library.cluster_names(), *library.gpu_names())]
        hint = "Parameters and sources: wattlaw simulate --list-hardware --hardware NAME"
        columns = [
            tables.text("name", "name"),
            tables.text("description", "description"),
            tables.text("GPUs", lambda row: f"{row['gpus_per_node']} x {row['nodes']} nodes"),
            tables.text("cap W", lambda row: f"{row['min_limit_w']:g}-{row['max_w']:g}"),
            tables.text("MHz", lambda row: f"{row['min_clock_mhz']:g}-{row['max_clock_mhz']:g}"),
            tables.text("precisions", lambda row: ", ".join(row["precisions"])),
        ]
    if as_json:
        print(json.dumps(rows))
        return 0
    console = Console()
    console.show(tables.build("hardware", title, columns, rows, max_rows=len(rows)))
    if hint:
        console.print(hint)
    return 0


def _hardware_row(name: str) -> dict[str, Any]:
    cluster = library.read_cluster(name)
    gpu = cluster.gpu
    return {
        "name": name,
        "description": cluster.name if name in library.cluster_names() else f"one {gpu.name}",
        "gpu": gpu.name,
        "nodes": cluster.nodes,
        "gpus_per_node": cluster.node.gpus,
        "precisions": sorted(gpu.peak_tflops),
        "min_limit_w": gpu.min_limit_w,
        "max_w": gpu.max_w,
        "min_clock_mhz": gpu.min_clock_mhz,
        "max_clock_mhz": gpu.max_clock_mhz,
    }


def parameters(part: Described, prefix: str = "") -> list[dict[str, Any]]:
    """Return the numbers of a hardware description, each with its unit and its source."""
    rows = []
    for key, value in part.numbers().items():
        unit = next((unit for end, unit in _UNITS.items() if key.endswith(f"_{end}")), "")
        for name, number in value.items() if isinstance(value, dict) else [("", value)]:
            dotted = f"{prefix}{key}" + (f".{name}" if name else "")
            source = part.sources[key]
            rows.append({"key": dotted, "value": number, "unit": unit, "source": source})
    for key, value in part:
        rows += parameters(value, f"{prefix}{key}.") if isinstance(value, Described) else []
    return rows
