"""``wattlaw predict``."""

import json
from typing import Annotated

from wattlaw.api import results
from wattlaw.cli.common import options as opts
from wattlaw.cli.common.console import Console
from wattlaw.cli.common.options import option, parse_counts, parse_layout, parse_limits
from wattlaw.report.renderers import prediction_lines
from wattlaw.report.topics.prediction import table


def predict(
    stores: opts.StoreArguments,
    workload: opts.WorkloadOption = None,
    gpus: Annotated[
        str | None, option("N,...", "GPU counts. Default: the measured ones and their doublings.")
    ] = None,
    nodes: Annotated[
        str | None, option("N,...", "Numbers of nodes. Default: as few as the GPUs need.")
    ] = None,
    gpus_per_node: Annotated[
        int | None,
        option("N", "GPUs of a node. Default: the study's, else the most of a run.", min=1),
    ] = None,
    local_batch: Annotated[str | None, option("B,...", "Samples per GPU and step.")] = None,
    global_batch: Annotated[
        str | None,
        option("B,...", "Samples per step of all GPUs. Default: the batch of most runs."),
    ] = None,
    power_limit: opts.PowersOption = None,
    clock: opts.ClocksOption = None,
    layout: Annotated[
        list[str] | None,
        option(
            "NAME=V,...",
            "Parallel layout: tp, pp, cp, ep, micro_batch, sharding ... Default: of most runs.",
        ),
    ] = None,
    baseline: opts.BaselineOption = None,
    epochs: Annotated[
        int | None, option("E", "Epochs to train: shows the time of the training.", min=1)
    ] = None,
    hardware: opts.HardwareOption = None,
    far: opts.FarOption = False,
    seed: Annotated[int, option("SEED", "Seed of the random numbers.", min=0)] = 0,
    as_json: opts.JsonOption = False,
    strict: opts.StrictOption = False,
) -> int:
    """Predict time and energy of settings that did not run.

    The exit code is 1 if the runs do not allow a prediction.
    """
    opened = results.open(*stores, strict=strict)
    opts.note_other_workloads(opened, workload)
    predictions = opened.predict(
        workload, gpus=parse_counts("--gpus", gpus), nodes=parse_counts("--nodes", nodes),
        gpus_per_node=gpus_per_node, local_batch=parse_counts("--local-batch", local_batch),
        global_batch=parse_counts("--global-batch", global_batch),
        power_limit_w=parse_limits("--power-limit", power_limit),
        clock_limit_mhz=parse_limits("--clock", clock),
        layout=parse_layout(layout), baseline=baseline, epochs=epochs, hardware=hardware,
        seed=seed, far=far,
    )  # fmt: skip
    if as_json:
        print(json.dumps(predictions.to_dict()["rows"], allow_nan=False))
        return 0
    console = Console()
    console.show(table(predictions))
    for line in prediction_lines(predictions):
        console.print(line)
    return 0
