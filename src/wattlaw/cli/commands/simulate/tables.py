"""The text output of ``simulate``: a description of one setting, or a table of several."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from wattlaw.analysis.advice.option import Quantity
from wattlaw.analysis.advice.words import ENERGY, TIME, Units, amount, number, told
from wattlaw.analysis.caps.limits import limit_words
from wattlaw.cli.commands.simulate.settings import Calibrated
from wattlaw.cli.common.console import Console
from wattlaw.formatting import plural
from wattlaw.simulator.job import SimulatedJob

Row = Mapping[str, Any]
Column = Callable[[Sequence[Row]], list[str]]

_BAR_WIDTH, _LABEL_WIDTH = 30, 28
_WIDE = 170
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


def show(rows: Sequence[Row], template: SimulatedJob, calibrated: Calibrated | None) -> None:
    """Print one setting as text, or several as a table, after a line on how they were predicted."""
    console = Console()
    if len(rows) > 1:  # a truncated number would be wrong: let the line wrap instead
        console = Console(width=max(console.width, _WIDE))
    lines = [_subject(rows[0], template), _source(calibrated)]
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


def _source(calibrated: Calibrated | None) -> str:
    if calibrated is None:
        return "Simulated, uncalibrated. The parameters are defaults; their error is unknown."
    calibration = calibrated.calibration
    return (
        f"Simulated, calibrated: {calibration.digest}, {calibration.settings} settings of "
        f"{calibration.gpu}. Brackets contain 95 % intervals."
    )


def _description(row: Row) -> list[str]:
    lines = [
        f"{plural(row['gpus'], 'GPU')} on {plural(row['nodes'], 'node')}, local batch "
        f"{row['local_batch']:,}, global batch {row['global_batch']:,}, "
        f"{limit_words('power_limit_w', row['power_limit_w'])}, "
        f"{limit_words('clock_limit_mhz', row['clock_limit_mhz'])}",
        f"One epoch takes {told(_quantity(row, 'epoch_time_s'), TIME)} "
        f"({number(row['samples_per_s'])} samples/s). It uses "
        f"{told(_quantity(row, 'gpu_energy_per_epoch_j'), ENERGY)} on GPUs, "
        f"{told(row['cpu_energy_per_epoch_j'], ENERGY)} on CPUs and "
        f"{told(row['dram_energy_per_epoch_j'], ENERGY)} on DRAM.",
        f"Training ({plural(row['epochs'], 'epoch')}): {told(row['train_time_s'], TIME)}, "
        f"{told(row['energy_j'], ENERGY)} in total, {told(row['gpu_energy_j'], ENERGY)} on GPUs, "
        f"{number(row['gpu_hours'])} GPU-hours.",
        f"Each GPU draws {amount(_quantity(row, 'power_per_gpu_w'), 'W')} at "
        f"{row['sm_clock_mhz']:,.0f} MHz. Utilization: SMs {100 * row['sm_util']:.0f} %, "
        f"memory {100 * row['mem_util']:.0f} %.",
        f"Bottleneck: {_bottleneck(row)}.",
    ]
    if row["eval_time_s"] is not None:
        lines.append(
            f"Each evaluation adds {told(row['eval_time_s'], TIME)} and "
            f"{told(row['eval_gpu_energy_j'], ENERGY)} on GPUs."
        )
    if row["epochs_to_target"] is not None:
        lines.append(
            f"To the target: {number(row['epochs_to_target'])} epochs, "
            f"{told(row['time_to_target_s'], TIME)}, {told(row['energy_to_target_j'], ENERGY)}."
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
        lines.append(f"Each epoch starts with {told(row['startup_s'], TIME)} of startup.")
    return lines


def _ms(seconds: float) -> str:
    return f"{number(1e3 * seconds)} ms" if seconds < 10 else told(seconds, TIME)


def _sweep(rows: Sequence[Row]) -> Table:
    """Return a row for each setting, without the columns that have no values."""
    table = Table(box=box.SIMPLE_HEAD)
    columns = {name: column(rows) for name, column in _COLUMNS.items()}
    columns = {name: cells for name, cells in columns.items() if set(cells) - _NO_VALUE}
    for name in columns:
        table.add_column(name, justify="left" if name == "bottleneck" else "right", no_wrap=True)
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    return table


def _quantity(row: Row, name: str) -> Quantity:
    return Quantity(row[name], *(row.get(f"{name}_ci") or (None, None)))


def _each(cell: Callable[[Row], str]) -> Column:
    return lambda rows: [cell(row) for row in rows]


def _in_unit(name: str, units: Units, unit_from: str = "") -> Column:
    """Return a column of amounts in the unit that fits its median, or that of ``unit_from``."""

    def cells(rows: Sequence[Row]) -> list[str]:
        values = sorted(row[unit_from or name] for row in rows if row[name] is not None)
        if not values:
            return ["-"] * len(rows)
        median = values[len(values) // 2]
        unit, size, _ = next(unit for unit in units if median >= unit[2])
        return [
            "-"
            if row[name] is None
            else told(_quantity(row, name), ((unit, size, 0.0),)).replace(" to ", "-")
            for row in rows
        ]

    return cells


def _number(name: str, form: str) -> Column:
    return _each(lambda row: "-" if row[name] is None else format(row[name], form))


#: A column with only such cells is left out.
_NO_VALUE = {"-", "uncapped", "free clock"}
_COLUMNS: Mapping[str, Column] = {
    "GPUs": _number("gpus", ","),
    "cap": _each(lambda row: limit_words("power_limit_w", row["power_limit_w"])),
    "clock": _each(lambda row: limit_words("clock_limit_mhz", row["clock_limit_mhz"])),
    "batch": _number("global_batch", ","),
    "epoch": _in_unit("epoch_time_s", TIME),
    "speedup": _number("speedup", ".4g"),
    "efficiency": _number("parallel_efficiency", ".2g"),
    "beta": _number("beta", ".3f"),
    "W per GPU": _each(lambda row: number(row["power_per_gpu_w"])),
    "GPU energy": _in_unit("gpu_energy_per_epoch_j", ENERGY, unit_from="energy_per_epoch_j"),
    "total energy": _in_unit("energy_per_epoch_j", ENERGY),
    "time to target": _in_unit("time_to_target_s", TIME),
    "energy to target": _in_unit("energy_to_target_j", ENERGY),
    "bottleneck": _each(_bottleneck),
}
