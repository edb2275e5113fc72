"""The text output of ``simulate``: one setting, a table of several, or the known hardware."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from wattlaw import formatting as fmt
from wattlaw.analysis.advice.option import Quantity
from wattlaw.cli.common.console import Console, make_table
from wattlaw.simulator import library
from wattlaw.simulator.job import SimulatedJob

if TYPE_CHECKING:
    from wattlaw.simulator.calibration import Calibration

Row = Mapping[str, Any]
Column = Callable[[Sequence[Row]], list[str]]

_BAR_WIDTH, _LABEL_WIDTH = 30, 28
_WIDE_COLUMNS = 170
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
_LIMITS = {"power_limit_w": "power limit", "clock_limit_mhz": "clock limit"}


def show(rows: Sequence[Row], template: SimulatedJob, calibration: "Calibration | None") -> None:
    """Print one setting as text, or several as a table, after a line on how they were predicted."""
    console = Console()
    if len(rows) > 1:  # a truncated number would be wrong: let the line wrap instead
        console = Console(width=max(console.width, _WIDE_COLUMNS))
    lines = [_subject(rows[0], template), _source(calibration)]
    if len(rows) == 1:
        lines += ["", *_description(rows[0]), "", *_step_parts(rows[0])]
    for line in lines:
        console.print(line)
    if len(rows) > 1:
        console.print(_sweep(rows))
    for warning in dict.fromkeys(text for row in rows for text in row["warnings"]):
        console.print(f"Warning: {warning}")


def _subject(row: Row, template: SimulatedJob) -> str:
    fraction = row["dataset_fraction"]
    part = "" if fraction == 1 else f" ({fraction:g} of the data)"
    return (
        f"{row['workload']} on {row['hardware']} ({template.cluster.gpu.name}), "
        f"{row['precision']}, {template.samples * fraction:,.0f} samples per epoch{part}"
    )


def _source(calibration: "Calibration | None") -> str:
    if calibration is None:
        return "Simulated, uncalibrated. The parameters are defaults; their error is unknown."
    return (
        f"Simulated, calibrated: {calibration.digest}, {calibration.settings} settings of "
        f"{calibration.gpu}. Brackets contain 95 % intervals."
    )


def _description(row: Row) -> list[str]:
    lines = [
        f"{fmt.plural(row['gpus'], 'GPU')} on {fmt.plural(row['nodes'], 'node')}, local batch "
        f"{row['local_batch']:,}, global batch {row['global_batch']:,}, "
        f"{fmt.limit_label('power_limit_w', row['power_limit_w'])}, "
        f"{fmt.limit_label('clock_limit_mhz', row['clock_limit_mhz'])}",
        f"One epoch takes {fmt.duration_text(_quantity(row, 'epoch_time_s'))} "
        f"({fmt.number(row['samples_per_s'])} samples/s). It uses "
        f"{fmt.energy_text(_quantity(row, 'gpu_energy_per_epoch_j'))} on GPUs, "
        f"{fmt.energy_text(row['cpu_energy_per_epoch_j'])} on CPUs and "
        f"{fmt.energy_text(row['dram_energy_per_epoch_j'])} on DRAM.",
        f"Training ({fmt.plural(row['epochs'], 'epoch')}): "
        f"{fmt.duration_text(row['train_time_s'])}, {fmt.energy_text(row['energy_j'])} in total, "
        f"{fmt.energy_text(row['gpu_energy_j'])} on GPUs, "
        f"{fmt.number(row['gpu_hours'])} GPU-hours.",
        f"Each GPU draws {fmt.estimate_text(_quantity(row, 'power_per_gpu_w'), 'W')} at "
        f"{row['sm_clock_mhz']:,.0f} MHz. Utilisation: SMs {100 * row['sm_util']:.0f} %, "
        f"memory {100 * row['mem_util']:.0f} %.",
        f"Bottleneck: {_bottleneck(row)}.",
    ]
    if row["eval_time_s"] is not None:
        lines.append(
            f"Each evaluation adds {fmt.duration_text(row['eval_time_s'])} and "
            f"{fmt.energy_text(row['eval_gpu_energy_j'])} on GPUs."
        )
    if row["epochs_to_target"] is not None:
        lines.append(
            f"To the target: {fmt.number(row['epochs_to_target'])} epochs, "
            f"{fmt.duration_text(row['time_to_target_s'])}, "
            f"{fmt.energy_text(row['energy_to_target_j'])}."
        )
    return lines


def _bottleneck(row: Row) -> str:
    text = _BOTTLENECKS[row["bottleneck"]]
    limit = _LIMITS.get(row["limited_by"])
    if limit is None:
        return text
    # A limit that slows only hidden kernels costs no time.
    return f"{text} ({limit})" if row["bottleneck"] == "compute" else f"{text} (not the {limit})"


def _step_parts(row: Row) -> list[str]:
    """Return the parts of a step's time: a line with a bar for each."""
    step_s, roofline_s = row["step_time_s"], row["roofline_s"]
    lines = [f"Parts of a step of {_ms(step_s)} (roofline: {_ms(roofline_s)}):"]
    for part, label in _PARTS.items():
        share = row[part] / step_s
        bar = "#" * round(_BAR_WIDTH * share)
        lines.append(f"  {label:<{_LABEL_WIDTH}} {_ms(row[part]):>9} {100 * share:5.1f} %  {bar}")
    if row["startup_s"]:
        lines.append(f"Each epoch starts with {fmt.duration_text(row['startup_s'])} of startup.")
    return lines


def _ms(seconds: float) -> str:
    return f"{fmt.number(1e3 * seconds)} ms" if seconds < 10 else fmt.duration_text(seconds)


def _sweep(rows: Sequence[Row]) -> Table:
    """Return a row for each setting, without the columns that have no values."""
    columns = {name: column(rows) for name, column in _COLUMNS.items()}
    columns = {name: cells for name, cells in columns.items() if set(cells) - _NO_VALUE}
    cells = zip(*columns.values(), strict=True)
    right = {*columns} - {"bottleneck"}
    return make_table(columns, cells, right=right, no_wrap=columns, is_plain=True)


def _quantity(row: Row, name: str) -> Quantity:
    return Quantity(row[name], *(row.get(f"{name}_ci") or (None, None)))


def _column(cell: Callable[[Row], str]) -> Column:
    return lambda rows: [cell(row) for row in rows]


def _in_unit(name: str, units: fmt.Units, unit_from: str = "") -> Column:
    """Return a column of amounts in the unit that fits its median, or that of ``unit_from``."""

    def cells(rows: Sequence[Row]) -> list[str]:
        values = [row[unit_from or name] for row in rows if row[name] is not None]
        size, unit = fmt.choose_unit(values, units)
        return [
            "-"
            if row[name] is None
            else fmt.estimate_text(_quantity(row, name), unit, size).replace(" to ", "-")
            for row in rows
        ]

    return cells


def _number(name: str, form: str) -> Column:
    return _column(lambda row: "-" if row[name] is None else format(row[name], form))


#: A column with only such cells is left out.
_NO_VALUE = {"-", "uncapped", "free clock"}
_COLUMNS: Mapping[str, Column] = {
    "GPUs": _number("gpus", ","),
    "cap": _column(lambda row: fmt.limit_label("power_limit_w", row["power_limit_w"])),
    "clock": _column(lambda row: fmt.limit_label("clock_limit_mhz", row["clock_limit_mhz"])),
    "batch": _number("global_batch", ","),
    "epoch": _in_unit("epoch_time_s", fmt.TIME_UNITS),
    "speedup": _number("speedup", ".4g"),
    "efficiency": _number("parallel_efficiency", ".2g"),
    "beta": _number("beta", ".3f"),
    "W per GPU": _column(lambda row: fmt.number(row["power_per_gpu_w"])),
    "GPU energy": _in_unit(
        "gpu_energy_per_epoch_j", fmt.ENERGY_UNITS, unit_from="energy_per_epoch_j"
    ),
    "total energy": _in_unit("energy_per_epoch_j", fmt.ENERGY_UNITS),
    "time to target": _in_unit("time_to_target_s", fmt.TIME_UNITS),
    "energy to target": _in_unit("energy_to_target_j", fmt.ENERGY_UNITS),
    "bottleneck": _column(_bottleneck),
}


def show_hardware(hardware: str | None, *, as_json: bool) -> int:
    """List the known hardware, or the parameters of a cluster with their sources."""
    cells: list[tuple[str, ...]]
    if hardware is not None:
        cluster = library.read_cluster(hardware)
        entries = library.describe(cluster)
        rows = [entry._asdict() for entry in entries]
        cells = [(e.key, f"{e.value:g} {e.unit}".strip(), e.source) for e in entries]
        table = make_table(
            ("parameter", "value", "source"), cells, right=("value",), is_plain=True,
            title=cluster.name,
        )  # fmt: skip
    else:
        rows = [_hardware_row(name) for name in (*library.cluster_names(), *library.gpu_names())]
        cells = [
            (
                row["name"],
                row["description"],
                f"{row['gpus_per_node']} x {row['nodes']} nodes",
                f"{row['min_limit_w']:g}-{row['max_w']:g}",
                f"{row['min_clock_mhz']:g}-{row['max_clock_mhz']:g}",
                ", ".join(row["precisions"]),
            )
            for row in rows
        ]
        columns = ("name", "description", "GPUs per node", "cap W", "clock MHz", "precisions")
        table = make_table(columns, cells, no_wrap=("name",), is_plain=True)
    if as_json:
        print(json.dumps(rows))
        return 0
    console = Console()
    console.print(table)
    if hardware is None:
        console.print("Parameters and sources: wattlaw simulate --list-hardware --hardware NAME")
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
