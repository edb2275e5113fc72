"""The commands around runs: ``run``, ``check``, ``status``, ``cancel``, ``measure`` and more."""

from pathlib import Path
from typing import Annotated, Optional

import typer

from wattlaw.cli.options import (
    ClockOption,
    JsonOption,
    PowerOption,
    PriorClocksOption,
    StoreArgument,
    StudyArgument,
)

app = typer.Typer()
workloads_app = typer.Typer(invoke_without_command=True)
app.add_typer(workloads_app, name="workloads")


@app.command()
def run(
    study: StudyArgument,
    store: Annotated[Path, typer.Option(help="Where results go.")] = Path("wattlaw-store"),
    launch: Annotated[
        Optional[str], typer.Option(metavar="KIND", help="Launch this way instead.")  # noqa: UP045
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the runs and what is done; run nothing.")
    ] = False,
    assume_tflops: Annotated[
        float,
        typer.Option(metavar="T", help="Of each GPU, for the GPU-hours that --dry-run tells."),
    ] = 10.0,
    hardware: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="NAME|FILE", help="Cluster of --launch simulated."),
    ] = None,
    calibration: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="FILE", help="Of 'wattlaw calibrate', for --launch simulated."),
    ] = None,
    fail_share: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(metavar="X", help="Share of attempts that --launch simulated lets fail."),
    ] = None,
) -> int:
    """Run what a study asks for and the store does not have yet."""
    from wattlaw.cli import running

    simulation = {"hardware": hardware, "calibration": calibration, "fail_share": fail_share}
    return running.run(
        study, store, launch, simulation, dry_run=dry_run, assume_tflops=assume_tflops
    )


@app.command()
def check(study: StudyArgument) -> int:
    """Check a study file and say how many runs it asks for."""
    from wattlaw.cli import running

    return running.check(study)


@app.command()
def status(store: StoreArgument, as_json: JsonOption = False) -> int:
    """Show how the runs of a store stand."""
    from wattlaw.cli import stores

    return stores.status(store, as_json=as_json)


@app.command()
def cancel(store: StoreArgument) -> int:
    """End the runs of a store that are under way, in the queue of Slurm too."""
    from wattlaw.cli import stores

    return stores.cancel(store)


@app.command(context_settings={"allow_interspersed_args": False})
def measure(
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND...", help="What to run, as it is.")
    ],
    store: Annotated[
        Path, typer.Option("-o", "--store", metavar="DIR", help="Where the run is stored.")
    ] = Path("wattlaw-store"),
    power_limit: PowerOption = None,
    clock_limit: ClockOption = None,
    prior_clocks: PriorClocksOption = None,
    sample_hz: Annotated[float, typer.Option(help="Samples per second.")] = 10.0,
    assume_cpu_w: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(metavar="W", help="Watts per busy core, for an estimate."),
    ] = None,
    json_to: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--json", metavar="FILE", help="Also write the summary as JSON."),
    ] = None,
) -> int:
    """Measure time, energy and use of any command; its exit code is ours."""
    from wattlaw.cli import measuring
    from wattlaw.limits.requests import Limits

    return measuring.measure(
        command,
        store,
        limits=Limits(power_limit, clock_limit),
        prior_clocks=prior_clocks,
        sample_hz=sample_hz,
        assume_cpu_w=assume_cpu_w,
        json_to=json_to,
    )


@workloads_app.callback()
def workloads(context: typer.Context, as_json: JsonOption = False) -> int:
    """List what can be trained."""
    if context.invoked_subcommand is not None:
        return 0
    from wattlaw.cli import workloads

    return workloads.workloads(as_json=as_json)


@workloads_app.command("show")
def workloads_show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A workload.")],
) -> int:
    """Show the options of a workload, with what is allowed."""
    from wattlaw.cli import workloads

    return workloads.show(name)


@workloads_app.command("make-data")
def workloads_make_data(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A workload that reads files.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")],
    size: Annotated[int, typer.Option(help="Training samples (of weather: time steps).")],
    seed: Annotated[int, typer.Option(help="What the data are drawn from.")] = 0,
) -> int:
    """Write a small made-up data set in the real format of a workload's files."""
    from wattlaw.cli import workloads

    return workloads.make_data(name, folder, size, seed)


@workloads_app.command("figures")
def workloads_profile(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A workload.")],
    options: Annotated[str, typer.Option(metavar="JSON", help="Its options, as an object.")] = "{}",
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("-o", "--out", metavar="FILE", help="Write them here; else they are printed."),
    ] = None,
) -> int:
    """Count what a workload asks of any hardware, for simulations of it."""
    from wattlaw.cli import workloads

    return workloads.profile(name, options, out)
