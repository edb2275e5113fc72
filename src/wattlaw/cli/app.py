"""The application. It imports the module of a command only to run that command."""

from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from wattlaw.common import registry
from wattlaw.common.errors import NotAvailable
from wattlaw.common.registry import Command

#: The core's commands with their help, so that ``wattlaw --help`` imports no command. Groups are
#: the headings there; add-ons name one of them, or their own.
_GROUPS = {
    "Measure": {
        "measure": "Measure the time, energy and utilisation of a command.",
        "devices": "List the devices that can be measured and limited.",
        "limits": "Show, set and restore power limits and clock locks.",
    },
    "Study": {
        "init": "Run a training command briefly; write a study file for it.",
        "examples": "List the examples.",
        "workloads": "List the workloads.",
        "check": "Validate a study file and count its runs.",
        "run": "Run the missing runs of a study.",
        "status": "Count runs by status and show why runs are not done.",
        "next": "Show the measurements that would help a decision most.",
        "cancel": "Cancel the active runs of a store and its Slurm jobs.",
    },
    "Answers": {
        "advise": "Recommend GPUs, power limit, clock and batch size.",
        "report": "Write an HTML report that works offline.",
        "proposal": "Write scaling and campaign for a compute-time proposal.",
        "fit": "Fit scaling laws to stores or to a table.",
        "predict": "Predict time and energy of settings that did not run.",
        "compare": "Compare machines, code versions, before and after.",
    },
    "Data": {
        "import": "Import files of other tools, and any table.",
        "export": "Write a table, an archive or another format to a file.",
    },
}
#: Commands whose arguments include a command; its options and empty arguments are its own.
MEASURING = ("measure", "init")
#: ``import`` is a keyword of Python, and ``next`` a function of it.
_FUNCTIONS = {"import": "import_files", "next": "next_measurements"}


def _commands() -> dict[str, Command]:
    """Return the commands of the core, then those of the add-ons, by name.

    An add-on replaces no command of the core, and one that is broken does not break the others.
    """
    own = {}
    for heading, commands in _GROUPS.items():
        for name, text in commands.items():
            function = _FUNCTIONS.get(name, name)
            own[name] = Command(text, f"wattlaw.cli.commands.{function}", function, heading)
    group, added = "wattlaw.commands", dict[str, Command]()
    for name in registry.names(group):
        try:
            added[name] = registry.load(group, name)
        except NotAvailable as error:
            added[name] = Command(str(error), "", "")
    return own | added | own


COMMANDS = _commands()


class LazyGroup(TyperGroup):
    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - click's
        if cmd_name not in self.commands:
            return None
        text, name, function, _ = COMMANDS[cmd_name]
        if not name:
            raise NotAvailable(text)
        module = import_module(name)
        loader = typer.Typer(add_completion=False, rich_markup_mode=None)
        if hasattr(module, "app"):  # a command with commands of its own
            loader.add_typer(module.app, name=cmd_name)
        else:
            settings = {"allow_interspersed_args": cmd_name not in MEASURING}
            loader.command(cmd_name, context_settings=settings)(getattr(module, function))
        return typer.main.get_group(loader).commands[cmd_name]

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - click's
        for heading in dict.fromkeys([*_GROUPS, *(each.group for each in COMMANDS.values())]):
            chosen = {name: each for name, each in COMMANDS.items() if each.group == heading}
            with formatter.section(heading):
                width = max(map(len, COMMANDS))  # one column for all groups
                formatter.write_dl(
                    [(f"{name:{width}}", each.help) for name, each in chosen.items()]
                )


app = typer.Typer(
    name="wattlaw",
    cls=LazyGroup,
    help="Measure how the time and energy of neural network training scale, and choose settings.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


for _name, _command in COMMANDS.items():
    app.command(_name, help=_command.help)(lambda: None)


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
