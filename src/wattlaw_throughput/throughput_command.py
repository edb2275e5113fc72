"""``wattlaw throughput``."""

import json
from pathlib import Path
from typing import Annotated

import typer

from wattlaw.api import results
from wattlaw.cli.common import options as opts
from wattlaw.cli.common.console import Console
from wattlaw.cli.common.options import option
from wattlaw_throughput import throughput_text
from wattlaw_throughput.api import throughput_of


def throughput(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="Results folder.")],
    reference: Annotated[Path, typer.Argument(metavar="FILE", help="Table of measurements.")],
    mapping: Annotated[
        str | None,
        option("FIELD=COLUMN,...", "Column of each field of that table, as of import.", "--map"),
    ] = None,
    as_json: opts.JsonOption = False,
    strict: opts.StrictOption = False,
) -> int:
    """Compare the throughput of a store's fastest settings with known measurements."""
    placements = throughput_of(results.open(store, strict=strict), reference, mapping)
    if as_json:
        print(json.dumps(placements.to_dict(), allow_nan=False))
        return 0
    console = Console()
    for item in placements:
        console.print(throughput_text.headline(item), style="bold")
        console.show(throughput_text.table(item))
        console.print("\n".join(throughput_text.sentences(item)))
    return 0
