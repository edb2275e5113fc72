"""``wattlaw report``."""

from pathlib import Path
from typing import Annotated, Any

import typer

from wattlaw.api import results
from wattlaw.cli.common import options as opts
from wattlaw.cli.common.options import option
from wattlaw.common.errors import BadInput
from wattlaw.study.question import PRICES

_PROPOSAL = "proposal"


@opts.asks(PRICES)
def report(
    stores: opts.StoreArguments,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="HTML file to write; of a proposal also .md.")
    ] = Path("report.html"),
    figures: Annotated[Path | None, option("DIR", "Also write the figures to this folder.")] = None,
    kinds: Annotated[
        str, option("KINDS", "File types of the figures: png, svg, html.")
    ] = "png,svg",
    interactive: Annotated[
        bool, option(None, "Figures with values and zoom, and tables that can be sorted.")
    ] = False,
    claims: Annotated[
        bool, option(None, "Show the published claims even if these runs decide none.")
    ] = False,
    template: Annotated[
        str | None,
        option("NAME", "A layout, such as mit-2022 or kit-2025; proposal: for compute time."),
    ] = None,
    nodes: Annotated[
        int | None, option("N", "Proposal: nodes of a training. Required there.", min=1)
    ] = None,
    runs: Annotated[int | None, option("N", "Proposal: number of trainings.", min=1)] = None,
    epochs: Annotated[
        int | None,
        option("E", "Proposal: epochs of a training. Default: those of the runs.", min=1),
    ] = None,
    workload: opts.WorkloadOption = None,
    target: Annotated[
        float | None, option("Q", "Also report time and energy to this value of the metric.")
    ] = None,
    energy_scope: opts.EnergyScopeOption = None,
    strict: opts.StrictOption = False,
    **asked: Any,
) -> int:
    """Write an HTML report that works offline."""
    opened = results.open(*stores, strict=strict)
    only_there = {"nodes": nodes, "runs": runs, "epochs": epochs, "workload": workload}
    if template == _PROPOSAL:
        if nodes is None:
            raise BadInput("--template proposal: --nodes is required, the nodes of a training")
        written = opened.proposal(
            output, nodes=nodes, workload=workload, runs=runs or 1, epochs=epochs,
            energy_scope=energy_scope, **asked,
        )  # fmt: skip
        print(" ".join(map(str, [written.page, *written.figures])))
        return 0
    for name, value in only_there.items():
        if value is not None:
            raise BadInput(f"--{name}: allowed only with --template proposal")
    written = opened.report(
        output, figures=figures, kinds=kinds, template=template, claims=claims,
        interactive=interactive, target=target, energy_scope=energy_scope, **asked,
    )  # fmt: skip
    print(f"{output}: {output.stat().st_size / 1e6:.1f} MB; open it in a browser")
    if figures is not None:
        print(f"{figures}: {len(written.figures)} files")
    return 0
