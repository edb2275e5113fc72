"""``wattlaw report``."""

from pathlib import Path
from typing import Annotated, Any

import typer

from wattlaw.api import results
from wattlaw.cli.common import options as opts
from wattlaw.cli.common.options import option
from wattlaw.study.question import PRICES


@opts.asks(PRICES)
def report(
    stores: opts.StoreArguments,
    output: Annotated[Path, typer.Option("-o", "--output", help="HTML file to write.")] = Path(
        "report.html"
    ),
    figures: Annotated[Path | None, option("DIR", "Also write the figures to this folder.")] = None,
    interactive: Annotated[
        bool, option(None, "Figures with values and zoom, and tables that can be sorted.")
    ] = False,
    template: Annotated[
        str | None, option("NAME", "A layout, such as mit-2022 or kit-2025.")
    ] = None,
    energy_scope: opts.EnergyScopeOption = None,
    strict: opts.StrictOption = False,
    **asked: Any,
) -> int:
    """Write an HTML report that works offline."""
    opened = results.open(*stores, strict=strict)
    written = opened.report(
        output, figures=figures, template=template, interactive=interactive,
        energy_scope=energy_scope, **asked,
    )  # fmt: skip
    opts.note_other_workloads(opened)
    print(f"{output}: {output.stat().st_size / 1e6:.1f} MB; open it in a browser")
    if figures is not None:
        print(f"{figures}: {len(written.figures)} files")
    return 0
