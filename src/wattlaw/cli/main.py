"""The command ``wattlaw``. What a command needs is imported when it is called, for a fast start."""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.exceptions import TyperException

from wattlaw.cli import machine_commands, result_commands, simulation_commands, study_commands
from wattlaw.errors import WattlawError
from wattlaw.isolation import isolate

app = typer.Typer(
    name="wattlaw",
    help="Measure how a training job's time and energy scale, fit the laws, say what to run.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for _part in (study_commands, result_commands, simulation_commands, machine_commands):
    app.add_typer(_part.app)


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code. Errors are one line on stderr, never a traceback."""
    if arguments is None:  # this process is the command, not a program that calls it
        isolate()
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
