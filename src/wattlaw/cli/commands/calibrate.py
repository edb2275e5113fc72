"""``wattlaw calibrate``: the simulator's parameters, fitted to the runs of stores."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from wattlaw import formatting as fmt
from wattlaw.analysis.series import law_refusals
from wattlaw.api import results
from wattlaw.cli.common.console import Console, table_of
from wattlaw.cli.common.options import JsonOption, StoreArguments, StrictOption, option
from wattlaw.errors import BadInput
from wattlaw.files import write_text
from wattlaw.launch.simulated.calibration_data import (
    CalibrationData,
    WorkloadSource,
    calibration_data,
)
from wattlaw.report import tables
from wattlaw.simulator import calibration as calibrations
from wattlaw.simulator.calibration import Calibration, calibration_json
from wattlaw.simulator.calibration_summary import (
    FitErrors,
    fit_errors,
    fitted_parameters,
    fitted_work_factors,
)
from wattlaw.simulator.cluster import Cluster
from wattlaw.simulator.library import read_cluster
from wattlaw.terminal import print_note
from wattlaw.text import collapse_whitespace, join_names
from wattlaw.workloads import catalogue


def calibrate(
    stores: StoreArguments,
    hardware: Annotated[
        str, option("NAME|FILE", "Measured hardware; see 'wattlaw simulate --list-hardware'.")
    ],
    output: Annotated[Path, option("FILE", "File to write.", "-o", "--output")] = Path(
        "calibration.json"
    ),
    measured_as: Annotated[
        list[str] | None,
        option("NAME=WORKLOAD", "Workload of the runs named NAME. Can be repeated.", "--as"),
    ] = None,
    profile: Annotated[
        list[str] | None,
        option("NAME=FILE", "Workload profile of the runs named NAME. Can be repeated."),
    ] = None,
    as_json: JsonOption = False,
    strict: StrictOption = False,
) -> int:
    """Fit the simulator's parameters to measured runs."""
    cluster = read_cluster(hardware)
    if not output.absolute().parent.is_dir():
        raise BadInput(f"{output}: the folder does not exist")
    if output.is_dir():
        raise BadInput(f"{output}: is a folder; expected a file name")
    workloads = _workloads(measured_as or [], profile or [])
    table = results.open(*stores, strict=strict).metrics
    unknown = sorted({*workloads} - {*table["workload"]})
    if unknown:
        raise BadInput(
            f"--as or --profile: the stores have no runs named {unknown[0]!r:.80}; their runs are "
            f"named {join_names(sorted({*table['workload']}))}"
        )
    # Runs that emulate other GPUs are what they are here: few workers at a small batch.
    refusals = law_refusals(table.assign(emulated_gpus=None))
    records = table[refusals.isna()].to_dict("records")
    rows = ({str(name): value for name, value in row.items()} for row in records)
    data = calibration_data(rows, cluster, workloads)
    data.left_out.update(refusals.dropna())
    _print_notes(data, list(table["hardware"].dropna().unique()), cluster)
    if not data.measured:
        raise BadInput(f"calibrate: none of {len(table)} runs can be used")
    names = ", ".join(path.name for path in stores)
    calibration = calibrations.calibrate(data.measured, f"{data.runs} runs of {names}")
    write_text(output, calibration_json(calibration))
    errors = fit_errors(calibration, data.measured)
    if as_json:
        print(json.dumps(_to_dict(calibration, cluster, data, errors, output), allow_nan=False))
    else:
        _show(calibration, cluster, errors, output)
    return 1 if data.left_out else 0


def _workloads(measured_as: Sequence[str], profiles: Sequence[str]) -> dict[str, WorkloadSource]:
    """Return the workload of the runs of each name that the options mention."""
    workloads = {}
    for text in measured_as:
        name, workload = _pair("--as", text, "WORKLOAD")
        workloads[name] = WorkloadSource(catalogue.entry(workload).name)
    for text in profiles:
        name, path = _pair("--profile", text, "FILE")
        if name in workloads:
            raise BadInput(f"{name}: is in --as and in --profile; expected in one of them")
        profile = catalogue.read_profile(Path(path))
        workloads[name] = WorkloadSource(profile.workload, profile)
    return workloads


def _pair(option: str, text: str, what: str) -> tuple[str, str]:
    name, equals, value = (part.strip() for part in text.partition("="))
    if not (name and equals and value):
        raise BadInput(f"{option}: {text!r:.80} is not valid; expected NAME={what}")
    return name, value


def _print_notes(data: CalibrationData, labels: Sequence[str], cluster: Cluster) -> None:
    """Print on standard error the runs that are skipped, and notes on the others."""
    lines = [f"skipped {fmt.plural(count, 'run')}: {why}" for why, count in data.left_out.items()]
    lines += [f"{fmt.plural(count, 'run')}: {note}" for note, count in data.notes.items()]
    if len(labels) > 1:
        listed = ", ".join(map(str, labels))
        lines.append(f"the runs have several hardware names, treated as the same: {listed}")
    elif len(labels) and not _names_board(str(labels[0]), cluster.gpu.name):
        lines.append(f"the runs' hardware is {labels[0]!r}, treated as {cluster.gpu.name}")
    for line in lines:
        print_note(collapse_whitespace(line))


def _names_board(label: str, board: str) -> bool:
    """Return whether a label contains a part of a board's name with a digit, such as V100."""
    parts = [part for part in board.lower().split() if any(char.isdigit() for char in part)]
    return any(part in label.lower() for part in parts)


def _to_dict(
    calibration: Calibration,
    cluster: Cluster,
    data: CalibrationData,
    errors: FitErrors,
    output: Path,
) -> dict[str, Any]:
    return {
        "file": str(output),
        "digest": calibration.digest,
        "gpu": calibration.gpu,
        "runs": data.runs,
        "settings": calibration.settings,
        "parameters": [asdict(fitted) for fitted in fitted_parameters(calibration, cluster.gpu)],
        "work_factors": [asdict(fitted) for fitted in fitted_work_factors(calibration)],
        "time_sigma": calibration.time_sigma,
        "power_sigma": calibration.power_sigma,
        "median_time_error": errors.time,
        "median_power_error": errors.power,
        "median_energy_error": errors.energy,
        "left_out": [{"why": why, "runs": count} for why, count in data.left_out.items()],
        "notes": [{"note": note, "runs": count} for note, count in data.notes.items()],
    }


def _show(calibration: Calibration, cluster: Cluster, errors: FitErrors, output: Path) -> None:
    console = Console()
    lines = [
        f"{output}: calibration {calibration.digest} of {calibration.gpu}, from "
        f"{calibration.made_from} in {calibration.settings} settings.",
        "Residuals of the fitted settings (standard deviation, median):",
        f"  time    {fmt.percent(calibration.time_sigma)}, {fmt.percent(errors.time)}",
        f"  power   {fmt.percent(calibration.power_sigma)}, {fmt.percent(errors.power)}"
        if calibration.power_sigma is not None
        else "  power   not measured",
        f"  energy  {fmt.percent(errors.energy)} (median)",
    ]
    for line in lines:
        console.print(line)
    for title, rows in (
        ("Parameters", fitted_parameters(calibration, cluster.gpu)),
        ("Work per sample, relative to the profile", fitted_work_factors(calibration)),
    ):
        columns = [
            tables.text("parameter", lambda row: row.name),
            tables.number("default", lambda row: row.default),
            tables.number("fitted", lambda row: row.value),
            tables.Column("95 % interval", lambda row: fmt.interval(row.low, row.high)),
            tables.text("set by runs", lambda row: "yes" if row.is_identified else "no"),
        ]
        table = tables.build("fitted", title, columns, rows, max_rows=len(rows))
        if table is not None:
            console.print(table_of(table))
