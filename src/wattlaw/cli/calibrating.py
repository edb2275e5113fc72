"""``calibrate``: the simulator's free fractions, fitted to the runs of stores."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from wattlaw.analysis.metrics import run_metrics
from wattlaw.cli.console import Console
from wattlaw.errors import BadInput
from wattlaw.files import write_text
from wattlaw.launch.simulated.calibration_data import Known, Readings, readings
from wattlaw.simulator.calibration import Calibration, calibrate
from wattlaw.simulator.calibration_file import calibration_json
from wattlaw.simulator.calibration_summary import (
    FitErrors,
    FittedParameter,
    fit_errors,
    fitted_parameters,
    fitted_work_factors,
)
from wattlaw.simulator.cluster import Cluster
from wattlaw.simulator.library import read_cluster
from wattlaw.store.tables import read_stores
from wattlaw.text import collapse_whitespace
from wattlaw.workloads import catalogue


def calibrate_stores(
    stores: Sequence[Path],
    hardware: str,
    output: Path,
    measured_as: Sequence[str],
    profile: Sequence[str],
    *,
    as_json: bool,
) -> int:
    """Fit, write the file, and print what was found; return 1 if runs were left out.

    Raises
    ------
    BadInput
        An option cannot be, or no run can be used.
    Refused
        Too few settings can be used.
    """
    cluster = read_cluster(hardware)
    if not output.absolute().parent.is_dir():
        raise BadInput(f"{output}: its folder is not there")
    if output.is_dir():
        raise BadInput(f"{output}: is a folder; allowed: a file")
    known = _known(measured_as, profile)
    table = run_metrics(*read_stores(stores))
    unknown = sorted({*known} - {*table["workload"]})
    if unknown:
        there = ", ".join(sorted({*table["workload"]})) or "none"
        raise BadInput(
            f"--as or --profile: no runs are called {unknown[0]!r:.80}; there are: {there}"
        )
    rows = ({str(name): value for name, value in row.items()} for row in table.to_dict("records"))
    found = readings(rows, cluster, known)
    _tell(found, list(table["hardware"].dropna().unique()), cluster)
    if not found.measured:
        raise BadInput(f"calibrate: none of {len(table)} runs can be used")
    names = ", ".join(path.name for path in stores)
    calibration = calibrate(found.measured, f"{found.runs} runs of {names}")
    write_text(output, calibration_json(calibration))
    off = fit_errors(calibration, found.measured)
    if as_json:
        print(json.dumps(_as_json(calibration, cluster, found, off, output), allow_nan=False))
    else:
        _show(calibration, cluster, off, output)
    return 1 if found.left_out else 0


def _known(measured_as: Sequence[str], profile: Sequence[str]) -> dict[str, Known]:
    found = {}
    for text in measured_as:
        name, workload = _pair("--as", text, "WORKLOAD")
        found[name] = Known(catalogue.entry(workload).name)
    for text in profile:
        name, path = _pair("--profile", text, "FILE")
        if name in found:
            raise BadInput(f"{name}: given in --as and in --profile; allowed: once")
        own = catalogue.read_profile(Path(path))
        found[name] = Known(own.workload, own)
    return found


def _pair(option: str, text: str, what: str) -> tuple[str, str]:
    name, equals, value = (part.strip() for part in text.partition("="))
    if not (name and equals and value):
        raise BadInput(f"{option}: given {text!r:.80}; allowed: NAME={what}")
    return name, value


def _tell(found: Readings, labels: Sequence[str], cluster: Cluster) -> None:
    """Say on stderr what is left out, and what is to be known of the rest."""
    lines = [f"left out, {_runs(count)}: {why}" for why, count in found.left_out.items()]
    lines += [f"{_runs(count)}: {note}" for note, count in found.notes.items()]
    if len(labels) > 1:
        lines.append(f"the runs are of hardware {', '.join(map(str, labels))}: taken as one")
    elif len(labels) and not _is_like(str(labels[0]), cluster.gpu.name):
        lines.append(f"the runs' hardware is called {labels[0]}; it is taken as {cluster.gpu.name}")
    for line in lines:
        print(f"wattlaw: {collapse_whitespace(line)}", file=sys.stderr)


def _is_like(label: str, board: str) -> bool:
    """Say whether a free text names a board: a word with a digit, such as V100, is in both."""
    words = [word for word in board.lower().split() if any(char.isdigit() for char in word)]
    return any(word in label.lower() for word in words)


def _runs(count: int) -> str:
    return f"{count} run{'s' * (count > 1)}"


def _as_json(
    calibration: Calibration, cluster: Cluster, found: Readings, off: FitErrors, output: Path
) -> dict[str, Any]:
    return {
        "file": str(output),
        "digest": calibration.digest,
        "gpu": calibration.gpu,
        "runs": found.runs,
        "settings": calibration.settings,
        "parameters": [asdict(one) for one in fitted_parameters(calibration, cluster.gpu)],
        "work_factors": [asdict(one) for one in fitted_work_factors(calibration)],
        "time_sigma": calibration.time_sigma,
        "power_sigma": calibration.power_sigma,
        "median_time_error": off.time,
        "median_power_error": off.power,
        "median_energy_error": off.energy,
        "left_out": [{"why": why, "runs": count} for why, count in found.left_out.items()],
        "notes": [{"note": note, "runs": count} for note, count in found.notes.items()],
    }


def _show(calibration: Calibration, cluster: Cluster, off: FitErrors, output: Path) -> None:
    console = Console()
    words = [
        f"{output}: calibration {calibration.digest} of {calibration.gpu}, from "
        f"{calibration.made_from} in {calibration.settings} settings",
        f"Residuals: time {_percent(calibration.time_sigma)} (standard deviation), "
        f"{_percent(off.time)} (median)"
        + (
            f"; power {_percent(calibration.power_sigma)}, {_percent(off.power)}; energy "
            f"{_percent(off.energy)} (median)"
            if calibration.power_sigma is not None
            else "; no power was measured"
        )
        + ". They are of the settings that were fitted to.",
    ]
    for line in words:
        console.print(line)
    console.print(_table("parameter", fitted_parameters(calibration, cluster.gpu), told=True))
    console.print(_table("work of a sample over the profile'", fitted_work_factors(calibration)))


def _table(what: str, rows: Sequence[FittedParameter], *, told: bool = False) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column(what, overflow="fold")
    for column in ("default", "fitted", "95 % interval"):
        table.add_column(column, justify="right")
    if told:
        table.add_column("told by the runs")
    for one in rows:
        cells = [one.name, f"{one.default:.3g}", f"{one.value:.3g}"]
        cells.append(f"{one.low:.3g} to {one.high:.3g}")
        table.add_row(*cells, *(["yes" if one.is_identified else "no"] if told else []))
    return table


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
