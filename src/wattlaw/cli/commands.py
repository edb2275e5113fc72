"""All commands. What a command needs is imported when it is called, for a fast start."""

from typing import Annotated

import typer

from wattlaw.cli import (
    examples,
    machine_commands,
    result_commands,
    simulation_commands,
    study_commands,
)

app = typer.Typer(
    name="wattlaw",
    help="Measure how a training job's time and energy scale, fit the laws, say what to run.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for _part in (study_commands, examples, result_commands, simulation_commands, machine_commands):
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
