"""The commands around the simulator: ``simulate`` and ``calibrate``."""

from pathlib import Path
from typing import Annotated, Optional

import typer

from wattlaw.cli.options import JsonOption, RawOption, StoreArguments

app = typer.Typer()


@app.command()
def simulate(
    workload: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--workload", "-w", help="Which workload; see 'wattlaw workloads'."),
    ] = None,
    hardware: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="NAME|FILE", help="Cluster or board; see --list-hardware."),
    ] = None,
    options: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="JSON", help="The workload's options, as an object."),
    ] = None,
    profile: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="FILE", help="Of 'workloads profile', in place of the stored ones."),
    ] = None,
    samples: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(metavar="N", help="Of the data set, in place of the workload's."),
    ] = None,
    gpus: Annotated[str, typer.Option(metavar="N,...", help="GPU counts.")] = "1",
    gpus_per_node: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(metavar="N", help="Fewer than a node has."),
    ] = None,
    local_batch: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(metavar="B", help="Samples of each GPU in a step."),
    ] = None,
    global_batch: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(metavar="B", help="Samples of all GPUs in a step."),
    ] = None,
    power_limit: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="W,...", help="Power limits of each GPU, or none."),
    ] = None,
    clock_limit: Annotated[
        Optional[str],  # noqa: UP045
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
        Optional[float],  # noqa: UP045
        typer.Option(metavar="E", help="Epochs to the target with small batches."),
    ] = None,
    critical_batch: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(metavar="B", help="Global batch that needs twice those epochs."),
    ] = None,
    calibration: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="FILE", help="Of 'wattlaw calibrate'."),
    ] = None,
    measured_as: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--as", metavar="NAME", help="Which workload of the calibration this is."),
    ] = None,
    list_hardware: Annotated[
        bool,
        typer.Option("--list-hardware", help="List known hardware, or all numbers of --hardware."),
    ] = False,
    output: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("-o", "--output", metavar="FILE", help="Also a .csv, .parquet or .jsonl."),
    ] = None,
    raw: RawOption = False,
    as_json: JsonOption = False,
) -> int:
    """Say what settings would take on hardware that need not be there: time, energy, power."""
    from wattlaw.cli import hardware_list, simulating

    if list_hardware:
        return hardware_list.show(hardware, as_json=as_json)
    return simulating.simulate(
        simulating.Asked(
            workload=workload, hardware=hardware, options=options, profile=profile,
            samples=samples, gpus=gpus, gpus_per_node=gpus_per_node, local_batch=local_batch,
            global_batch=global_batch, power_limit=power_limit, clock_limit=clock_limit,
            precision=precision, dataset_fraction=dataset_fraction, epochs=epochs,
            gradient_accumulation=gradient_accumulation, target_epochs=target_epochs,
            critical_batch=critical_batch, calibration=calibration, measured_as=measured_as,
        ),
        output,
        raw=raw,
        as_json=as_json,
    )  # fmt: skip


@app.command()
def calibrate(
    stores: StoreArguments,
    hardware: Annotated[
        str, typer.Option(metavar="NAME|FILE", help="What was measured; see simulate.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE")] = Path(
        "calibration.json"
    ),
    measured_as: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            "--as",
            metavar="NAME=WORKLOAD",
            help="Which workload the runs called NAME are; may be repeated.",
        ),
    ] = None,
    profile: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            metavar="NAME=FILE",
            help="WorkloadProfile of the runs called NAME, from a file; may be repeated.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Fit the simulator's free fractions to measured runs, with what stays uncertain."""
    from wattlaw.cli import calibrating

    return calibrating.calibrate_stores(
        stores, hardware, output, measured_as or [], profile or [], as_json=as_json
    )
