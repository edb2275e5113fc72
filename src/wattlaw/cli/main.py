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

StoreArgument = Annotated[Path, typer.Argument(metavar="STORE", help="A store made by 'run'.")]
StoreArguments = Annotated[
    list[Path], typer.Argument(metavar="STORE...", help="One or more stores made by 'run'.")
]
StudyArgument = Annotated[Path, typer.Argument(metavar="STUDY.yaml", help="A study file.")]
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
) -> int:
    """Run what a study asks for and the store does not have yet."""
    from wattlaw.cli import running

    return running.run(study, store, launch, dry_run=dry_run)


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


@app.command()
def workloads(as_json: JsonOption = False) -> int:
    """List what can be trained."""
    from wattlaw.cli import stores

    return stores.workloads(as_json=as_json)


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
