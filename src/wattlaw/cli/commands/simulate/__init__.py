"""``wattlaw simulate``: predictions for settings on hardware that need not be available."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from wattlaw.cli.commands.simulate import hardware as hardware_list
from wattlaw.cli.commands.simulate import settings
from wattlaw.cli.common.options import JsonOption, RawOption
from wattlaw.cli.common.parsing import positive
from wattlaw.errors import BadInput
from wattlaw.simulator.job import SimulatedJob
from wattlaw.simulator.predict import predict
from wattlaw.simulator.what_if import Target, add_scaling, prediction_row
from wattlaw.study.base import MAX_COUNT, Precision

app = typer.Typer()
_MOST_SAMPLES = 10**15
_MOST_EPOCHS = 100_000
#: The same as ``store.tables.KINDS``, whose import takes longer than a simulation.
_KINDS = (".csv", ".parquet", ".jsonl")


@app.command()
def simulate(
    workload: Annotated[
        str | None, typer.Option("--workload", "-w", help="Workload; see 'wattlaw workloads'.")
    ] = None,
    hardware: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE", help="Cluster or GPU; see --list-hardware."),
    ] = None,
    options: Annotated[
        str | None, typer.Option(metavar="JSON", help="Options of the workload, a JSON object.")
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Profile from 'wattlaw workloads profile', instead of the packaged one.",
        ),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, max=_MOST_SAMPLES,
            help="Samples in the training data. Default: those of the workload.",
        ),
    ] = None,
    gpus: Annotated[str, typer.Option(metavar="N,...", help="GPU counts.")] = "1",
    gpus_per_node: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, max=MAX_COUNT, help="GPUs used per node. Default: all of them."
        ),
    ] = None,
    local_batch: Annotated[
        int | None,
        typer.Option(metavar="B", min=1, max=MAX_COUNT, help="Samples per GPU and step."),
    ] = None,
    global_batch: Annotated[
        int | None,
        typer.Option(metavar="B", min=1, max=MAX_COUNT, help="Samples per step on all GPUs."),
    ] = None,
    power_limit: Annotated[
        str | None, typer.Option(metavar="W,...", help="Power limits per GPU; none: no limit.")
    ] = None,
    clock_limit: Annotated[
        str | None, typer.Option(metavar="MHZ,...", help="Clock limits per GPU; none: no limit.")
    ] = None,
    precision: Annotated[Precision, typer.Option(help="Number format of the training.")] = "fp32",
    dataset_fraction: Annotated[
        float,
        typer.Option(
            metavar="X", max=1, callback=positive, help="Share of the training data to use."
        ),
    ] = 1.0,
    epochs: Annotated[
        int, typer.Option(metavar="E", min=1, max=_MOST_EPOCHS, help="Epochs to train.")
    ] = 1,
    gradient_accumulation: Annotated[
        int,
        typer.Option(metavar="K", min=1, max=100_000, help="Gradient-accumulation steps."),
    ] = 1,
    target_epochs: Annotated[
        float | None,
        typer.Option(
            metavar="E", min=1e-9, max=1e9,
            help="Epochs that small batches need to reach the target.",
        ),
    ] = None,
    critical_batch: Annotated[
        float | None,
        typer.Option(
            metavar="B", min=1e-9, max=1e9,
            help="Global batch that needs twice as many epochs.",
        ),
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File from 'wattlaw calibrate'.")
    ] = None,
    measured_as: Annotated[
        str | None,
        typer.Option("--as", metavar="NAME", help="Workload of the calibration to use."),
    ] = None,
    list_hardware: Annotated[
        bool,
        typer.Option(
            "--list-hardware",
            help="List the known hardware; with --hardware, its parameters and their sources.",
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="Also write a .csv, .parquet or .jsonl file."
        ),
    ] = None,
    raw: RawOption = False,
    as_json: JsonOption = False,
) -> int:  # fmt: skip
    """Predict time, energy and power without the hardware."""
    if list_hardware:
        return hardware_list.show(hardware, as_json=as_json)
    if (local_batch is None) == (global_batch is None):
        raise BadInput("simulate: exactly one of --local-batch and --global-batch is required")
    if measured_as is not None and calibration is None:
        raise BadInput("--as: requires --calibration")
    if output is not None and output.suffix.lower() not in _KINDS:
        listed = ", ".join(_KINDS)
        raise BadInput(f"{output}: unknown file type {output.suffix!r}; expected {listed}")
    target = _target(target_epochs, critical_batch)
    template = settings.job_template(
        workload, hardware, options=options, profile_path=profile, samples=samples,
        gpus_per_node=gpus_per_node, precision=precision, dataset_fraction=dataset_fraction,
        gradient_accumulation=gradient_accumulation,
    )  # fmt: skip
    calibrated = None
    if calibration is not None:
        calibrated = settings.read_calibrated(calibration, template, measured_as)
        template = calibrated.applied(template)
    jobs = settings.sweep(
        template, gpus=gpus, power_limits=power_limit, clock_limits=clock_limit,
        local_batch=local_batch, global_batch=global_batch,
    )  # fmt: skip
    rows = add_scaling(_rows(jobs, epochs, target, calibrated))
    if output is not None:
        _write(output, rows, raw=raw)
    if as_json:
        print(json.dumps(rows, allow_nan=False))
    else:
        from wattlaw.cli.commands.simulate.tables import show

        show(rows, template, calibrated)
    return 0 if len(rows) == len(jobs) else 1


def _target(epochs: float | None, critical_batch: float | None) -> Target | None:
    if epochs is None and critical_batch is None:
        return None
    if epochs is None or critical_batch is None:
        raise BadInput("simulate: --target-epochs and --critical-batch require each other")
    return Target(epochs, critical_batch)


def _rows(
    jobs: Sequence[SimulatedJob],
    epochs: int,
    target: Target | None,
    calibrated: settings.Calibrated | None,
) -> list[dict[str, Any]]:
    """Return the predictions; print the settings that cannot be simulated on standard error."""
    rows, errors = [], []
    for job in jobs:
        try:
            rows.append(_row(job, epochs, target, calibrated))
        except BadInput as error:
            if len(jobs) == 1:
                raise
            errors.append(f"{_label(job)}: {error}")
    for error_text in errors:
        print(f"wattlaw: skipped: {error_text}", file=sys.stderr)
    if not rows:
        raise BadInput(f"simulate: none of the {len(jobs)} settings can be simulated")
    return rows


def _row(
    job: SimulatedJob, epochs: int, target: Target | None, calibrated: settings.Calibrated | None
) -> dict[str, Any]:
    if not job.local_batch:
        raise BadInput("--global-batch: is not a multiple of the GPU count")
    intervals = None if calibrated is None else calibrated.intervals(job)
    source = "uncalibrated" if calibrated is None else f"calibrated {calibrated.digest}"
    prediction = prediction_row(predict(job), epochs, target, intervals)
    return {"simulated": True, "calibration": source, **prediction}


def _label(job: SimulatedJob) -> str:
    limits = {"W": job.power_limit_w, "MHz": job.clock_limit_mhz}
    texts = [f"{value:g} {unit}" for unit, value in limits.items() if value is not None]
    return ", ".join([f"{job.gpus:,} GPU{'s' * (job.gpus > 1)}", *texts])


def _write(output: Path, rows: list[dict[str, Any]], *, raw: bool) -> None:
    """Write the rows as a table; a nested value becomes JSON text."""
    import pyarrow as pa

    from wattlaw.store.tables import write_table

    flat = [
        {
            name: json.dumps(value) if isinstance(value, dict | list) else value
            for name, value in row.items()
        }
        for row in rows
    ]
    write_table(output, pa.Table.from_pylist(flat), raw=raw)
