"""The command ``wattlaw``. What a command needs is imported when it is called, for a fast start."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Optional

import typer
from typer.exceptions import TyperException

from wattlaw.errors import WattlawError

app = typer.Typer(
    name="wattlaw",
    help="Measure how a training job's time and energy scale, fit the laws, say what to run.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

limits_app = typer.Typer(help="Power and clock limits: show, set, give back.")
app.add_typer(limits_app, name="limits")
workloads_app = typer.Typer(invoke_without_command=True)
app.add_typer(workloads_app, name="workloads")

StoreArgument = Annotated[Path, typer.Argument(metavar="STORE", help="A store made by 'run'.")]
StoreArguments = Annotated[
    list[Path], typer.Argument(metavar="STORE...", help="One or more stores made by 'run'.")
]
StudyArgument = Annotated[Path, typer.Argument(metavar="STUDY.yaml", help="A study file.")]
PowerOption = Annotated[
    Optional[float],  # noqa: UP045
    typer.Option("--power-limit", metavar="W", help="Power limit of each GPU."),
]
ClockOption = Annotated[
    Optional[float],  # noqa: UP045
    typer.Option("--clock-limit", metavar="MHZ", help="Clock of each GPU."),
]
PriorClocksOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--prior-clocks", metavar="default", help="State that no clock is locked now."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from wattlaw import __version__

        print(f"wattlaw {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


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
) -> int:
    """Run what a study asks for and the store does not have yet."""
    from wattlaw.cli import running

    return running.run(study, store, launch, dry_run=dry_run, assume_tflops=assume_tflops)


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
def fit(
    source: Annotated[
        list[Path],
        typer.Argument(metavar="STORE|TABLE...", help="Stores, or one CSV or Parquet table."),
    ],
    x: Annotated[str, typer.Option(help="Column of the number of workers.")] = "gpus",
    y: Annotated[str, typer.Option(help="Column of the time.")] = "epoch_time_s",
    by: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="COLS", help="Columns that tell series apart, with commas."),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Fit the power law t = alpha * N^-beta to each series."""
    from wattlaw.cli import analysing

    return analysing.fit(source, x, y, by, as_json=as_json)


@app.command()
def report(
    stores: StoreArguments,
    output: Annotated[Path, typer.Option("-o", "--output", help="The page.")] = Path("report.html"),
    figures: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="DIR", help="Also write each figure as PNG and SVG."),
    ] = None,
) -> int:
    """Write one HTML page, readable with no network, of what the stores say."""
    from wattlaw.cli import analysing

    return analysing.report(stores, output, figures)


@app.command()
def export(
    store: StoreArgument,
    table: Annotated[str, typer.Argument(metavar="runs|epochs|telemetry|fits")],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="A .csv, .parquet or .jsonl file.")
    ],
) -> int:
    """Write a table of a store to a file."""
    from wattlaw.cli import analysing

    return analysing.export(store, table, output)


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
    from wattlaw.limits.guard import Limits

    return measuring.measure(
        command,
        store,
        limits=Limits(power_limit, clock_limit),
        prior_clocks=prior_clocks,
        sample_hz=sample_hz,
        assume_cpu_w=assume_cpu_w,
        json_to=json_to,
    )


@app.command()
def devices(as_json: JsonOption = False) -> int:
    """List what this machine can measure and limit, and why not."""
    from wattlaw.cli import machine

    return machine.devices(as_json=as_json)


@app.command()
def selftest(as_json: JsonOption = False) -> int:
    """Measure the measuring on this machine: a verdict per line, in about 40 s."""
    from wattlaw.cli import machine

    return machine.selftest(as_json=as_json)


@limits_app.command("show")
def limits_show(as_json: JsonOption = False) -> int:
    """Show the limits of each device, and what is to be given back."""
    from wattlaw.cli import machine

    return machine.limits_show(as_json=as_json)


@limits_app.command("set")
def limits_set(
    power_limit: PowerOption = None,
    clock_limit: ClockOption = None,
    prior_clocks: PriorClocksOption = None,
    gpu: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(metavar="UUID", help="Which GPU; may be repeated. By default all visible."),
    ] = None,
) -> int:
    """Limit GPUs until 'limits restore'."""
    from wattlaw.cli import machine
    from wattlaw.limits.guard import Limits

    return machine.limits_set(gpu or [], Limits(power_limit, clock_limit), prior_clocks)


@limits_app.command("restore")
def limits_restore() -> int:
    """Give back the limits that were there before wattlaw changed them."""
    from wattlaw.cli import machine

    return machine.limits_restore()


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code. Errors are one line on stderr, never a traceback."""
    try:
        result = app(args=arguments, prog_name="wattlaw", standalone_mode=False)
    except WattlawError as error:
        code, text = error.exit_code, str(error)
    except TyperException as error:
        code, text = 2, getattr(error, "format_message", error.__str__)()
    except (typer.Abort, KeyboardInterrupt):
        code, text = 1, "interrupted"
    except PermissionError as error:
        code, text = 3, f"no permission: {error.filename}"
    except OSError as error:
        code, text = 2, f"{error.filename or 'the system'}: {error.strerror or error}"
    else:
        return result if isinstance(result, int) else 0
    print(f"wattlaw: {' '.join(text.split())}", file=sys.stderr)
    return code
