"""``wattlaw proposal``."""

from pathlib import Path
from typing import Annotated, Any

import typer

from wattlaw.api import results
from wattlaw.cli.common import options as opts
from wattlaw.cli.common.options import option
from wattlaw.study.question import PRICES


@opts.asks(PRICES)
def proposal(
    stores: opts.StoreArguments,
    nodes: Annotated[
        int | None, option("N", "Nodes of a training. Default: those of the advice.")
    ] = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="File to write: .html or .md.")
    ] = Path("proposal.html"),
    workload: opts.WorkloadOption = None,
    runs: Annotated[int, option("N", "Number of trainings.")] = 1,
    epochs: Annotated[
        int | None, option("E", "Epochs of a training. Default: those of the runs.")
    ] = None,
    steps: Annotated[float | None, option("N", "Steps of the planned batch instead.")] = None,
    total_samples: Annotated[float | None, option("N", "Samples instead of epochs.")] = None,
    tokens: Annotated[float | None, option("N", "Tokens instead of epochs.")] = None,
    sequence_length: Annotated[int | None, option("N", "Tokens of a sample.")] = None,
    rule: Annotated[
        float | None, option("X", "Least speedup per doubling of GPUs, such as 1.5.")
    ] = None,
    energy_scope: opts.EnergyScopeOption = None,
    strict: opts.StrictOption = False,
    **asked: Any,
) -> int:
    """Write scaling and campaign for a compute-time proposal."""
    opened = results.open(*stores, strict=strict)
    opts.note_other_workloads(opened, workload)
    written = opened.proposal(
        output, nodes=nodes, workload=workload, runs=runs, epochs=epochs, steps=steps,
        total_samples=total_samples, tokens=tokens, sequence_length=sequence_length, rule=rule,
        energy_scope=energy_scope, **asked,
    )  # fmt: skip
    print(" ".join(map(str, [written.page, *written.figures])))
    return 0
