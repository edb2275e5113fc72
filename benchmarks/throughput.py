"""Samples per second: our loop beside the plain reference loop, same model, settings and machine.

``make bench-throughput``. Both loops are built, each in a process of its own, and train epochs in
turns, in random order, never at the same time. What counts is the ratio within a round: a drift of
the machine is in both. As two processes of the same loop differ too, both are built several times.
References are described in ``references.py``; the nets are reduced so that a processor trains them,
and the same on both sides. Each side has one thread: with more, one core that is busy with
something else holds up all.
"""

import argparse
import math
import os
import random
import statistics
import time
from collections.abc import Iterable
from typing import Any

from sides import Case, Lost, Side, opened
from watched import write_results
from wattlaw import machine
from wattlaw.launch.selftest import median_interval

PACKAGES = ("torchvision", "transformers", "accelerate", "torch-geometric", "nvidia-physicsnemo")
#: What is not the same on both sides, beside the loop.
DIFFERENCES = {
    "vision": "as_used reads loss and accuracies of every batch; bare does not. Ours normalises "
    "8-bit images in the net, the reference has them as normalised floats.",
    "bert-base": "as_used asks the head at all tokens, ours at the predicted ones only; same_head "
    "is Trainer with our model and our batches: the difference of the loops alone.",
    "schnet": "The reference finds neighbours within the net, ours with the batch, by the same "
    "plain function. as_used reads the loss of every batch; bare does not.",
    "dimenet": "As schnet; and ours has the spherical basis in a few tensor operations, where "
    "PyTorch Geometric has one per function.",
    "fourcastnet": "The reference has its states in store; ours makes them as it trains.",
}
#: For both sides: else it depends on the pages that a process happens to get how fast it is.
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
BUILD_LIMIT_S, BLOCK_LIMIT_S = 120.0, 200.0  # the first block may compile
_NET = {"classes": 100, "image_size": 32}

#: Nets of which one core trains an epoch in less than a second.
CASES = (
    Case("vgg16", {**_NET, "width": 8, "train_samples": 256}, batch=16),
    Case("inceptionv3", {"classes": 100, "image_size": 75, "aux": False, "train_samples": 16},
         batch=4),
    Case("resnet50", {**_NET, "blocks": [1, 1, 1, 1], "train_samples": 48}, batch=8),
    Case("bert-base", {"hidden_size": 128, "layers": 2, "heads": 2, "intermediate_size": 512,
                       "vocab_size": 850, "train_samples": 64}, batch=8),
    Case("dimenet", {"hidden_channels": 32, "blocks": 1, "bilinear": 4, "spherical": 3,
                     "train_samples": 32}, batch=4),
    Case("schnet", {"hidden_channels": 32, "filters": 32, "interactions": 3,
                    "train_samples": 384}, batch=32),
    Case("fourcastnet", {"image_size": [64, 128], "channels": 4, "embed_dim": 256, "depth": 4,
                         "num_blocks": 8, "train_samples": 16}, batch=4),
)  # fmt: skip


def contest(
    ours: Side, reference: Side, hows: Iterable[str], *, rounds: int, until_s: float = math.inf
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Let ours and some of the reference's loops take turns, an epoch each.

    Before that each trains an epoch that is not counted. Past ``until_s`` (monotonic) no further
    round is begun.

    Returns
    -------
    tuple
        Each block with its loop and round; and the reference's loops that cannot train, and why.
    """
    players, failed = {"ours": ours} | dict.fromkeys(hows, reference), {}
    for how, side in list(players.items()):
        try:
            side.ask(BLOCK_LIMIT_S, how=how, epochs=1)
        except Lost as lost:
            if side is ours:
                raise
            failed[how] = str(lost)
            del players[how]
    order, blocks = random.Random(rounds), []  # noqa: S311
    for number in range(rounds):
        if time.monotonic() > until_s:
            break
        for how in order.sample(list(players), len(players)):
            block = players[how].ask(BLOCK_LIMIT_S, how=how, epochs=1)
            blocks.append({"how": how, "round": number} | block)
    return blocks, failed


def judged(blocks: list[dict[str, Any]]) -> dict[str, Any]:
    """Return samples per second of each loop, and ratios of ours to the others round by round.

    ``ratio`` is by the wall's clock. ``ratio_by_processor_time`` leaves out what the processor gave
    to others meanwhile; where a GPU computes, it says nothing.
    """
    hows = [how for how in dict.fromkeys(block["how"] for block in blocks) if how != "ours"]
    found: dict[str, Any] = {
        "samples_per_s": {
            how: statistics.median(_rates(blocks, how, "seconds")) for how in ("ours", *hows)
        },
        "block_s": statistics.median(block["seconds"] for block in blocks),
        "samples_per_block": blocks[0]["samples"],
    }
    for name, clock in (("ratio", "seconds"), ("ratio_by_processor_time", "cpu_s")):
        found[name] = {}
        for how in hows:
            pairs = zip(_rates(blocks, "ours", clock), _rates(blocks, how, clock), strict=True)
            ratios = [ours / other for ours, other in pairs]
            low, high = median_interval(ratios)
            found[name][how] = {
                "median": statistics.median(ratios),
                "median_95_low": low,
                "median_95_high": high,
                "rounds": [round(ratio, 4) for ratio in ratios],
            }
    return found


def _rates(blocks: list[dict[str, Any]], how: str, clock: str) -> list[float]:
    """Return a loop's samples per second, round by round."""
    return [block["samples"] / block[clock] for block in blocks if block["how"] == how]


def settings(case: Case) -> dict[str, Any]:
    """Return what the two sides have in common, and in what they differ."""
    vision = case.workload in ("vgg16", "inceptionv3", "resnet50")
    return {
        "workload": case.workload,
        "options": case.options,
        "batch": case.batch,
        "precision": case.precision,
        "channels_last": case.channels_last,
        "compile": case.compile,
        "fused_optimizer": case.fused,
        "loader_workers": case.loader_workers,
        "differences": DIFFERENCES["vision" if vision else case.workload],
    }


def compared(case: Case, builds: int, rounds: int, threads: int) -> dict[str, Any]:
    """Return what is found of one case; a side that is lost leaves the reason."""
    environment = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": str(threads), **HUGE_PAGES}
    row: dict[str, Any] = settings(case) | {"failed": {}}
    blocks: list[dict[str, Any]] = []
    loads = [os.getloadavg()[0]]
    for _ in range(builds):
        try:
            with opened(case, environment, BUILD_LIMIT_S) as (ours, reference, told):
                found, failed = contest(ours, reference, told["hows"], rounds=rounds)
        except Lost as lost:
            return row | {"failed": {"ours": str(lost)}}
        if told["failed"] | failed:
            return row | {"failed": told["failed"] | failed}
        blocks += found
        row |= {key: told[key] for key in ("parameters", "flops_per_sample", "threads")}
        loads.append(os.getloadavg()[0])
    return row | judged(blocks) | {"load_average": loads}


def main() -> None:
    """Compare on the processor, and write the results file."""
    names = [case.workload for case in CASES]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--builds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5, help="of each build")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="one round, no results file")
    parser.add_argument("--workloads", nargs="+", choices=names, default=names)
    options = parser.parse_args()
    builds, rounds = (1, 1) if options.quick else (options.builds, options.rounds)
    rows = []
    for case in CASES:
        if case.workload not in options.workloads:
            continue
        row = compared(case, builds, rounds, options.threads)
        rows.append(row)
        for how, why in row["failed"].items():
            print(f"{case.workload}: {how}: {why}", flush=True)
        for how, ratio in row.get("ratio", {}).items():
            by_cpu = row["ratio_by_processor_time"][how]["median"]
            print(
                f"{case.workload}: {row['samples_per_s']['ours']:.1f} samples/s, "
                f"{ratio['median']:.3f} x {how} ({ratio['median_95_low']:.3f} to "
                f"{ratio['median_95_high']:.3f}), by processor time {by_cpu:.3f}",
                flush=True,
            )
    if options.quick:
        return
    write_results(
        "throughput",
        f"cpu{os.cpu_count()}",
        {
            "versions": machine.software(PACKAGES),
            "settings": {
                "builds": builds,
                "rounds": rounds,
                "block": "an epoch; one of each before is not counted",
                "order": "random within a round",
                "evaluation": "off",
                "environment": HUGE_PAGES,
            },
            "loops": rows,
        },
    )


if __name__ == "__main__":
    main()
