"""``examples``: list the examples that come with wattlaw, and copy one."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()
_examples = typer.Typer(invoke_without_command=True)
app.add_typer(_examples, name="examples")


@_examples.callback()
def examples(context: typer.Context) -> int:
    """List the examples: study files to start from, and the grids of two published studies."""
    if context.invoked_subcommand is None:
        from wattlaw.examples import EXAMPLES

        width = max(len(example.name) for example in EXAMPLES)
        for example in EXAMPLES:
            print(f"{example.name:<{width}}  {example.summary}")
        print("Write one here: wattlaw examples copy NAME [DIR]")
    return 0


@_examples.command("copy")
def examples_copy(
    name: Annotated[str, typer.Argument(metavar="NAME", help="An example.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write to.")] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")] = False,
) -> int:
    """Write the files of an example into a folder."""
    from wattlaw.errors import BadInput
    from wattlaw.examples import example
    from wattlaw.files import replacing

    chosen = example(name)
    paths = [folder / file for file in chosen.files]
    for path in paths:
        if path.exists() and not force:
            raise BadInput(
                f"{path}: the file exists; add --force to overwrite it, or copy to another folder: "
                f"wattlaw examples copy {name} DIR"
            )
    folder.mkdir(parents=True, exist_ok=True)
    for path in paths:
        with replacing(path) as temporary:
            temporary.write_bytes(chosen.read(path.name))
        print(path)
    return 0
