"""What ``simulate`` found, in words and tables."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from wattlaw.analysis.advice.formatting import (
    ENERGY_UNITS,
    TIME_UNITS,
    Units,
    format_number,
    format_quantity,
    with_unit,
)
from wattlaw.analysis.advice.option import Quantity
from wattlaw.analysis.caps.limits import format_limit
from wattlaw.cli.console import Console
from wattlaw.simulator.job import Job

if TYPE_CHECKING:
    from wattlaw.cli.simulating import Calibrated

Row = Mapping[str, Any]
Column = Callable[[Sequence[Row]], list[str]]

_BAR, _WORDS = 30, 28
_WIDE = 170
_WHAT = {
    "compute_s": "kernels run",
    "launch_s": "the host issues kernels",
    "communication_s": "gradients' communication in sight",
    "slowest_s": "waiting for the slowest GPU",
    "input_s": "waiting for samples",
}
_HOLDS = {
    "compute": "kernels", "launch": "the host", "communication": "communication",
    "input": "samples",
}  # fmt: skip
_LIMITS = {"power_limit_w": "power limit", "clock_limit_mhz": "clock limit"}


def show(rows: Sequence[Row], first: Job, made_by: "Calibrated | None") -> None:
    """Print one setting in words, or several as a table; what they are made of above both."""
    console = Console()
    if len(rows) > 1:  # a number that is cut says something else: better a line that wraps
        console = Console(width=max(console.width, _WIDE))
    lines = [_about(rows[0], first), _made_by(made_by)]
    if len(rows) == 1:
        lines += ["", *_takes(rows[0]), "", *_parts(rows[0])]
    for line in lines:
        console.print(line)
    if len(rows) > 1:
        console.print(_sweep(rows))
    for warning in dict.fromkeys(text for row in rows for text in row["warnings"]):
        console.print(f"Warning: {warning}")


def _about(row: Row, first: Job) -> str:
    share = row["dataset_fraction"]
    samples = f"{first.samples * share:,.0f} samples per epoch"
    return (
        f"{row['workload']} on {row['hardware']}, boards {first.cluster.gpu.name}, "
        f"{row['precision']}, "
        f"{samples}{'' if share == 1 else f' ({share:g} of the data)'}"
    )


def _made_by(made_by: "Calibrated | None") -> str:
    if made_by is None:
        return "Simulated, uncalibrated: parameters are defaults; how far off they are is not known"
    found = made_by.calibration
    return (
        f"Simulated, calibrated {found.digest} on {found.settings} settings of {found.gpu}; 95 % "
        "intervals in brackets"
    )


def _takes(row: Row) -> list[str]:
    gpus, nodes, epochs = row["gpus"], row["nodes"], row["epochs"]
    lines = [
        f"{gpus:,} GPU{'s' * (gpus > 1)} on {nodes:,} node{'s' * (nodes > 1)}, batch "
        f"{row['local_batch']:,} each ({row['global_batch']:,} in all), "
        f"{format_limit('power_limit_w', row['power_limit_w'])}, "
        f"{format_limit('clock_limit_mhz', row['clock_limit_mhz'])}",
        f"An epoch takes {with_unit(_quantity(row, 'epoch_time_s'), TIME_UNITS)}, "
        f"{with_unit(_quantity(row, 'gpu_energy_per_epoch_j'), ENERGY_UNITS)} of GPUs, "
        f"{with_unit(row['cpu_energy_per_epoch_j'], ENERGY_UNITS)} of CPUs and "
        f"{with_unit(row['dram_energy_per_epoch_j'], ENERGY_UNITS)} of DRAM, "
        f"{format_number(row['samples_per_s'])} samples/s.",
        f"{epochs:,} epoch{'s' * (epochs > 1)} take{'s' * (epochs == 1)} "
        f"{with_unit(row['train_time_s'], TIME_UNITS)}, {with_unit(row['energy_j'], ENERGY_UNITS)} "
        f"in all ({with_unit(row['gpu_energy_j'], ENERGY_UNITS)} of GPUs), "
        f"{format_number(row['gpu_hours'])} GPU-hours.",
        f"A GPU draws {format_quantity(_quantity(row, 'power_per_gpu_w'), 'W')} at "
        f"{row['sm_clock_mhz']:,.0f} MHz; SMs are in use {100 * row['sm_util']:.0f} % of the time, "
        f"memory {100 * row['mem_util']:.0f} %.",
        f"What holds it: {_limit(row)}.",
    ]
    if row["eval_time_s"] is not None:
        lines.append(
            f"Each evaluation takes {with_unit(row['eval_time_s'], TIME_UNITS)} and "
            f"{with_unit(row['eval_gpu_energy_j'], ENERGY_UNITS)} of GPUs more."
        )
    if row["epochs_to_target"] is not None:
        lines.append(
            f"To the target: {format_number(row['epochs_to_target'])} epochs, "
            f"{with_unit(row['time_to_target_s'], TIME_UNITS)}, "
            f"{with_unit(row['energy_to_target_j'], ENERGY_UNITS)}."
        )
    return lines


def _limit(row: Row) -> str:
    holds = str(row["bottleneck"])
    limit = _LIMITS.get(str(row["limited_by"]))
    if limit is None:
        return _HOLDS[holds]
    # A limit on what nobody waits for costs no time.
    return f"{_HOLDS[holds]}{', under the' if holds == 'compute' else '; not the'} {limit}"


def _parts(row: Row) -> list[str]:
    """Return where a step's time goes: a line and a bar for each part."""
    step_s, roofline_s = row["step_time_s"], row["roofline_s"]
    lines = [f"Where the {_ms(step_s)} of a step go (roofline: {_ms(roofline_s)}):"]
    for part, what in _WHAT.items():
        share = row[part] / step_s
        bar = "#" * round(_BAR * share)
        lines.append(f"  {what:<{_WORDS}} {_ms(row[part]):>9} {100 * share:5.1f} %  {bar}")
    if row["startup_s"]:
        lines.append(f"  and {with_unit(row['startup_s'], TIME_UNITS)} at the start of each epoch")
    return lines


def _ms(seconds: float) -> str:
    return f"{format_number(1e3 * seconds)} ms" if seconds < 10 else with_unit(seconds, TIME_UNITS)


def _sweep(rows: Sequence[Row]) -> Table:
    """Return a row for each setting; columns of limits and targets only where there are some."""
    table = Table(box=box.SIMPLE_HEAD)
    columns = {name: column(rows) for name, column in _COLUMNS.items()}
    columns = {n: cells for n, cells in columns.items() if set(cells) - _NOTHING}
    for name in columns:
        table.add_column(name, justify="left" if name == "held by" else "right", no_wrap=True)
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    return table


def _quantity(row: Row, name: str) -> Quantity:
    return Quantity(row[name], *(row.get(f"{name}_ci") or (None, None)))


def _each(cell: Callable[[Row], str]) -> Column:
    return lambda rows: [cell(row) for row in rows]


def _told(name: str, units: Units, like: str = "") -> Column:
    """Return the column of an amount, in the unit of its own median or of that of ``like``."""

    def cells(rows: Sequence[Row]) -> list[str]:
        known = sorted(row[like or name] for row in rows if row[name] is not None)
        if not known:
            return ["-"] * len(rows)
        middle = known[len(known) // 2]
        unit, factor, _ = next(one for one in units if middle >= one[2])
        return [
            "-"
            if row[name] is None
            else with_unit(_quantity(row, name), ((unit, factor, 0.0),)).replace(" to ", "-")
            for row in rows
        ]

    return cells


def _number(name: str, form: str) -> Column:
    return _each(lambda row: "-" if row[name] is None else format(row[name], form))


#: Cells of a column that is left out when it has no others.
_NOTHING = {"-", "uncapped", "free clock"}
_COLUMNS: Mapping[str, Column] = {
    "GPUs": _number("gpus", ","),
    "cap": _each(lambda row: format_limit("power_limit_w", row["power_limit_w"])),
    "clock": _each(lambda row: format_limit("clock_limit_mhz", row["clock_limit_mhz"])),
    "batch": _number("global_batch", ","),
    "epoch": _told("epoch_time_s", TIME_UNITS),
    "speedup": _number("speedup", ".4g"),
    "efficiency": _number("parallel_efficiency", ".2g"),
    "beta": _number("beta", ".3f"),
    "W per GPU": _each(lambda row: format_number(row["power_per_gpu_w"])),
    "GPU energy": _told("gpu_energy_per_epoch_j", ENERGY_UNITS, like="energy_per_epoch_j"),
    "all energy": _told("energy_per_epoch_j", ENERGY_UNITS),
    "to target": _told("time_to_target_s", TIME_UNITS),
    "its energy": _told("energy_to_target_j", ENERGY_UNITS),
    "held by": _each(_limit),
}
