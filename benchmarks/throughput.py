"""Samples per second of our training loop and of a plain reference loop of the same model.

Run with ``make bench-throughput``. Each loop is built in a process of its own. The two processes
train epochs in turns, in random order, never at the same time. The result is the ratio within a
round, in which a drift of the machine cancels. Two processes of the same loop also differ in speed,
so both are built several times. ``references.py`` describes the reference loops. The nets are
reduced so that a CPU can train them, and are the same on both sides. Each side has one thread:
with several, a single busy core would delay all of them.
"""

import argparse
import os
import random
import statistics
from collections.abc import Iterable
from typing import Any

from common import median_interval, write_results
from loop_process import Case, LoopError, LoopProcess, open_pair
from wattlaw.common import machine

PACKAGES = ("torchvision", "transformers", "accelerate", "torch-geometric", "nvidia-physicsnemo")
#: Differences between the two sides other than the loop, by workload.
DIFFERENCES = {
    "vision": "as_used reads loss and accuracies of every batch; bare does not. Our "
    "loop normalises 8-bit images in the net; the reference starts from normalised floats.",
    "bert-base": "as_used computes scores of all tokens, ours of the predicted ones only; "
    "same_head is Trainer with our model and our batches: only the loops differ.",
    "schnet": "The reference computes neighbours in the net, ours with the batch, by the same "
    "plain function. as_used reads the loss of every batch; bare does not.",
    "dimenet": "As schnet. Our spherical basis is a few tensor operations; PyTorch Geometric "
    "has one for each function.",
    "fourcastnet": "The reference has its states in memory; ours generates them during training.",
}
#: For both sides. Without huge pages, speed depends on the memory pages that a process gets.
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
BUILD_LIMIT_S, BLOCK_LIMIT_S = 120.0, 200.0  # the first block may compile
_NET = {"classes": 100, "image_size": 32}

#: Nets so small that one core trains an epoch in less than a second.
CASES = (
    Case("vgg16", {**_NET, "width": 8, "train_samples": 256}, batch=16),
    Case("inceptionv3", {"classes": 100, "image_size": 75, "train_samples": 16},
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


def train_in_turns(
    ours: LoopProcess,
    reference: LoopProcess,
    variants: Iterable[str],
    *,
    rounds: int,
    limit_s: float = BLOCK_LIMIT_S,
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Train our loop and variants of the reference loop in turns, one epoch each.

    Each loop first trains one epoch that is not counted.

    Returns
    -------
    tuple
        The timed blocks with the name of their loop and their round, and the reasons why variants
        cannot train, by name.
    """
    loops, failed = {"ours": ours} | dict.fromkeys(variants, reference), {}
    for variant, process in list(loops.items()):
        try:
            process.request(limit_s, variant=variant, epochs=1)
        except LoopError as error:
            if process is ours:
                raise
            failed[variant] = str(error)
            del loops[variant]
    order, blocks = random.Random(rounds), []  # noqa: S311
    for number in range(rounds):
        for variant in order.sample(list(loops), len(loops)):
            block = loops[variant].request(limit_s, variant=variant, epochs=1)
            blocks.append({"variant": variant, "round": number} | block)
    return blocks, failed


def compare_rates(blocks: list[dict[str, Any]]) -> dict[str, Any]:
    """Return samples per second of each loop, and our rate relative to the others per round.

    ``ratio`` uses elapsed time. ``ratio_by_processor_time`` is not affected by other processes on
    the machine; it is meaningless where a GPU computes.
    """
    variants = [
        variant
        for variant in dict.fromkeys(block["variant"] for block in blocks)
        if variant != "ours"
    ]
    result: dict[str, Any] = {
        "samples_per_s": {
            variant: statistics.median(_rates(blocks, variant, "seconds"))
            for variant in ("ours", *variants)
        },
        "block_s": statistics.median(block["seconds"] for block in blocks),
        "samples_per_block": blocks[0]["samples"],
    }
    for name, clock in (("ratio", "seconds"), ("ratio_by_processor_time", "cpu_s")):
        result[name] = {}
        for variant in variants:
            pairs = zip(_rates(blocks, "ours", clock), _rates(blocks, variant, clock), strict=True)
            ratios = [ours / other for ours, other in pairs]
            low, high = median_interval(ratios)
            result[name][variant] = {
                "median": statistics.median(ratios),
                "median_95_low": low,
                "median_95_high": high,
                "rounds": [round(ratio, 4) for ratio in ratios],
            }
    return result


def _rates(blocks: list[dict[str, Any]], variant: str, clock: str) -> list[float]:
    """Return the samples per second of a loop in each round."""
    return [block["samples"] / block[clock] for block in blocks if block["variant"] == variant]


def settings(case: Case) -> dict[str, Any]:
    """Return the settings of a case and the differences between its two sides."""
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


def measure_case(case: Case, builds: int, rounds: int, threads: int) -> dict[str, Any]:
    """Return the results of one case; ``failed`` has the reason if a side fails."""
    environment = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": str(threads), **HUGE_PAGES}
    row: dict[str, Any] = settings(case) | {"failed": {}}
    blocks: list[dict[str, Any]] = []
    loads = [os.getloadavg()[0]]
    for _ in range(builds):
        try:
            with open_pair(case, environment, BUILD_LIMIT_S) as (ours, reference, facts):
                new_blocks, failed = train_in_turns(
                    ours, reference, facts["variants"], rounds=rounds
                )
        except LoopError as error:
            return row | {"failed": {"ours": str(error)}}
        if facts["failed"] | failed:
            return row | {"failed": facts["failed"] | failed}
        blocks += new_blocks
        row |= {key: facts[key] for key in ("parameters", "flops_per_sample", "threads")}
        loads.append(os.getloadavg()[0])
    return row | compare_rates(blocks) | {"load_average": loads}


def main() -> None:
    """Compare all cases on the CPU, and write the results file."""
    names = [case.workload for case in CASES]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--builds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each build")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="one round, no results file")
    parser.add_argument("--workloads", nargs="+", choices=names, default=names)
    options = parser.parse_args()
    builds, rounds = (1, 1) if options.quick else (options.builds, options.rounds)
    rows = []
    for case in CASES:
        if case.workload not in options.workloads:
            continue
        row = measure_case(case, builds, rounds, options.threads)
        rows.append(row)
        for loop, reason in row["failed"].items():
            print(f"{case.workload}: {loop}: {reason}", flush=True)
        for loop, ratio in row.get("ratio", {}).items():
            by_cpu = row["ratio_by_processor_time"][loop]["median"]
            print(
                f"{case.workload}: {row['samples_per_s']['ours']:.1f} samples/s, "
                f"{ratio['median']:.3f} x {loop} ({ratio['median_95_low']:.3f} to "
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
                "block": "one epoch; a first epoch of each loop is not counted",
                "order": "random within a round",
                "evaluation": "off",
                "environment": HUGE_PAGES,
            },
            "loops": rows,
        },
    )


if __name__ == "__main__":
    main()
