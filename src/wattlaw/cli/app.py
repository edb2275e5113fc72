"""The application: every command by name. A command's module is imported when the command runs."""

from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

#: Each command with its help. ``wattlaw --help`` shows these lines without importing a command.
COMMANDS = {
    "run": "Run what a study asks for and the store does not have yet.",
    "check": "Check a study file and say how many runs it asks for.",
    "status": "Show the status of each run of a store.",
    "cancel": "End the runs of a store that are under way, in the queue of Slurm too.",
    "measure": "Measure time, energy and use of any command; its exit code is ours.",
    "workloads": "List what can be trained.",
    "examples": "List the example studies, and copy one.",
    "fit": "Fit the power law t = alpha * N^-beta to each series.",
    "report": "Write one HTML page, readable with no network, of what the stores say.",
    "claims": "Test the findings of the two studies on your stores.",
    "advise": "Say how many GPUs, which cap, clock and batch to use.",
    "import": "Turn measurements made elsewhere into runs of a store.",
    "export": "Write a table of a store to a file.",
    "simulate": "Predict time, energy and power without the hardware.",
    "calibrate": "Fit the simulator's free fractions to measured runs.",
    "devices": "List what this machine can measure and limit, and why not.",
    "selftest": "Check the overhead and accuracy of measurements on this machine.",
    "limits": "Power and clock limits: show, set, restore.",
}
_MODULES = {"import": "import_"}


class LazyGroup(TyperGroup):
    """A group that imports the module of a command only to run that command."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - click's
        """Return a command, or None where there is none of this name."""
        if cmd_name not in self.commands:
            return None
        module = import_module(f"wattlaw.cli.commands.{_MODULES.get(cmd_name, cmd_name)}")
        loader = typer.Typer(add_completion=False, rich_markup_mode=None)
        loader.add_typer(module.app)
        return typer.main.get_group(loader).commands[cmd_name]

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - click's
        """Write the commands' help without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


app = typer.Typer(
    name="wattlaw",
    cls=LazyGroup,
    help="Measure how a training job's time and energy scale, fit the laws, say what to run.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _placeholder() -> None: ...


for _name, _help in COMMANDS.items():
    app.command(_name, help=_help)(_placeholder)


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
