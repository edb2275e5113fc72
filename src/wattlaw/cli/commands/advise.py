"""``wattlaw advise``."""

import json
from typing import Annotated, Any

import typer

from wattlaw.analysis.advise.advice import Advice
from wattlaw.api import results
from wattlaw.cli.common import options as opts
from wattlaw.cli.common.console import Console
from wattlaw.common.errors import NothingToRecommend, Refused
from wattlaw.report.topics import advice_text, verdict


@opts.asks()
def advise(
    stores: opts.StoreArguments,
    workload: opts.WorkloadOption = None,
    baseline: opts.BaselineOption = None,
    any_batch: Annotated[
        bool, typer.Option("--any-batch", help="Consider batches of unknown or lower quality.")
    ] = False,
    far: opts.FarOption = False,
    details: Annotated[
        bool, typer.Option("--details", help="Also show the options and all warnings.")
    ] = False,
    energy_scope: opts.EnergyScopeOption = None,
    as_json: opts.JsonOption = False,
    strict: opts.StrictOption = False,
    **asked: Any,
) -> int:
    """Recommend GPUs, power limit, clock and batch size.

    The exit code is 1 if there is nothing to recommend.
    """
    opened = results.open(*stores, strict=strict)
    opts.note_other_workloads(opened, workload)
    several = workload is None and len(opened.asked_workloads) > 1
    advices, refused = list[Advice](), []
    for name in opened.asked_workloads if several else (workload,):
        try:
            advice = opened.advise(
                name, baseline=baseline, any_batch=any_batch, far=far, energy_scope=energy_scope,
                **asked,
            )  # fmt: skip
        except Refused as refusal:
            if not several:
                raise
            refused.append(f"{name}: no advice: {refusal}")
        else:
            advices.append(advice)
    code = 0 if any(advice.recommended for advice in advices) else NothingToRecommend.exit_code
    if as_json:
        rows = [advice.to_dict() for advice in advices]
        print(json.dumps(rows if several else rows[0], allow_nan=False))
        return code
    console = Console()
    if several:
        console.show(verdict.recommended(advices))
        refused += [f"{item.workload}: {item.reason}" for item in advices if not item.recommended]
        for line in (*refused, *map("Warning: {}".format, verdict.merge_warnings(advices))):
            console.print(line)
    else:
        first, *lines = advice_text.summary(advices[0])
        if advices[0].recommended and advices[0].command is None:
            lines.append(f"wattlaw report {advices[0].store} shows what this rests on.")
        console.print(first, style="bold")
        for line in lines:
            console.print(line, soft_wrap=line.startswith(advice_text.WITH_COMMAND))
    for advice in advices if details else ():
        reasons, table = advice_text.details(advice), verdict.settings(advice)
        console.show(table)
        for line in reasons:
            console.print(line)
    return code
