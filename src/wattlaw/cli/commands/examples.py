"""``wattlaw examples``: list and copy the examples."""

from pathlib import Path
from typing import Annotated

import typer

from wattlaw.cli.common.console import Console, make_table
from wattlaw.common.errors import BadInput
from wattlaw.common.files import replacing
from wattlaw.examples import EXAMPLES, example

app = typer.Typer(invoke_without_command=True)


@app.callback()
def examples(context: typer.Context) -> int:
    """List the examples.

    They are a script, study files to start from and the grids of two published studies.
    """
    if context.invoked_subcommand is None:
        console = Console()
        rows = [(entry.name, entry.summary) for entry in EXAMPLES]
        console.print(make_table(("example", "what it runs"), rows, no_wrap=("example",)))
        console.print("Copy: wattlaw examples copy NAME [DIR]")
    return 0


@app.command("copy")
def examples_copy(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Example.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write to.")] = Path(),
) -> int:
    """Write the files of an example into a folder."""
    chosen = example(name)
    paths = [folder / file for file in chosen.files]
    for path in paths:
        if path.exists():
            another = f"wattlaw examples copy {name} DIR"
            raise BadInput(f"{path}: the file exists; copy to another folder: {another}")
    folder.mkdir(parents=True, exist_ok=True)
    for path in paths:
        with replacing(path) as temporary:
            temporary.write_bytes(chosen.read(path.name))
        print(path)
    return 0
