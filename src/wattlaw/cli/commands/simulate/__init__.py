"""``wattlaw simulate``: predictions for settings of hardware that need not be available."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from wattlaw.cli.commands.simulate import hardware as hardware_list
from wattlaw.cli.commands.simulate import settings
from wattlaw.cli.common.options import JsonOption, RawOption
from wattlaw.errors import BadInput
from wattlaw.simulator.job import Job
from wattlaw.simulator.predict import predict
from wattlaw.simulator.what_if import Target, compared, row_of

app = typer.Typer()
#: As ``store.tables.KINDS``, whose import takes longer than a simulation.
_KINDS = (".csv", ".parquet", ".jsonl")


@app.command()
def simulate(
    workload: Annotated[
        str | None,
        typer.Option("--workload", "-w", help="Which workload; see 'wattlaw workloads'."),
    ] = None,
    hardware: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE", help="Cluster or board; see --list-hardware."),
    ] = None,
    options: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="The workload's options, as an object."),
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Of 'workloads profile', in place of the stored ones."),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(metavar="N", help="Of the data set, in place of the workload's."),
    ] = None,
    gpus: Annotated[str, typer.Option(metavar="N,...", help="GPU counts.")] = "1",
    gpus_per_node: Annotated[
        int | None,
        typer.Option(metavar="N", help="Fewer than a node has."),
    ] = None,
    local_batch: Annotated[
        int | None,
        typer.Option(metavar="B", help="Samples of each GPU in a step."),
    ] = None,
    global_batch: Annotated[
        int | None,
        typer.Option(metavar="B", help="Samples of all GPUs in a step."),
    ] = None,
    power_limit: Annotated[
        str | None,
        typer.Option(metavar="W,...", help="Power limits of each GPU, or none."),
    ] = None,
    clock_limit: Annotated[
        str | None,
        typer.Option(metavar="MHZ,...", help="Clocks of each GPU, or none."),
    ] = None,
    precision: Annotated[str, typer.Option(help="fp32, tf32, bf16 or fp16.")] = "fp32",
    dataset_fraction: Annotated[
        float, typer.Option(metavar="X", help="Share of the data set that is used.")
    ] = 1.0,
    epochs: Annotated[int, typer.Option(metavar="E", help="Epochs to train.")] = 1,
    gradient_accumulation: Annotated[
        int, typer.Option(metavar="K", help="Pieces in which a local batch is computed.")
    ] = 1,
    target_epochs: Annotated[
        float | None,
        typer.Option(metavar="E", help="Epochs to the target with small batches."),
    ] = None,
    critical_batch: Annotated[
        float | None,
        typer.Option(metavar="B", help="Global batch that needs twice those epochs."),
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Of 'wattlaw calibrate'."),
    ] = None,
    measured_as: Annotated[
        str | None,
        typer.Option("--as", metavar="NAME", help="Which workload of the calibration this is."),
    ] = None,
    list_hardware: Annotated[
        bool,
        typer.Option("--list-hardware", help="List known hardware, or all numbers of --hardware."),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Also a .csv, .parquet or .jsonl."),
    ] = None,
    raw: RawOption = False,
    as_json: JsonOption = False,
) -> int:
    """Say what settings would take on hardware that need not be there: time, energy, power."""
    if list_hardware:
        return hardware_list.show(hardware, as_json=as_json)
    asked = settings.Asked(
        workload=workload, hardware=hardware, options=options, profile=profile,
        samples=samples, gpus=gpus, gpus_per_node=gpus_per_node, local_batch=local_batch,
        global_batch=global_batch, power_limit=power_limit, clock_limit=clock_limit,
        precision=precision, dataset_fraction=dataset_fraction, epochs=epochs,
        gradient_accumulation=gradient_accumulation, target_epochs=target_epochs,
        critical_batch=critical_batch, calibration=calibration, measured_as=measured_as,
    )  # fmt: skip
    settings.check(asked)
    if output is not None and output.suffix.lower() not in _KINDS:
        listed = ", ".join(_KINDS)
        raise BadInput(f"{output}: unknown ending {output.suffix!r}; allowed: {listed}")
    target = settings.target(asked)
    first, made_by = settings.first_job(asked)
    jobs = list(settings.jobs(asked, first))
    rows, refused = [], []
    for job in jobs:
        try:
            rows.append(_row(job, asked.epochs, target, made_by))
        except BadInput as error:
            refused.append(str(error) if len(jobs) == 1 else f"{_named(job)}: {error}")
    if len(jobs) == 1 and refused:
        raise BadInput(refused[0])
    for why in refused:
        print(f"wattlaw: left out: {why}", file=sys.stderr)
    if not rows:
        raise BadInput(f"simulate: none of the {len(jobs)} settings can be simulated")
    rows = compared(rows)
    if output is not None:
        _write(output, rows, raw=raw)
    if as_json:
        print(json.dumps(rows, allow_nan=False))
    else:
        from wattlaw.cli.commands.simulate.tables import show

        show(rows, first, made_by)
    return 1 if refused else 0


def _row(
    job: Job, epochs: int, target: Target | None, made_by: settings.Calibrated | None
) -> dict[str, Any]:
    if not job.local_batch:
        raise BadInput("--global-batch: cannot be divided by so many GPUs; allowed: a multiple")
    told = None if made_by is None else made_by.intervals(job)
    row = row_of(predict(job), epochs, target, told)
    how = "uncalibrated" if made_by is None else f"calibrated {made_by.calibration.digest}"
    return {"simulated": True, "calibration": how, **row}


def _named(job: Job) -> str:
    words = [f"{job.gpus:,} GPU{'s' * (job.gpus > 1)}"]
    given = {"W": job.power_limit_w, "MHz": job.clock_limit_mhz}
    words += [f"{value:g} {unit}" for unit, value in given.items() if value is not None]
    return ", ".join(words)


def _write(output: Path, rows: list[dict[str, Any]], *, raw: bool) -> None:
    """Write rows as a table; what is nested is JSON in it."""
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
