"""What recording optimizer steps costs a script: the hook's own time, and what a training loses.

``python benchmarks/instrumentation.py``. The hook is timed within steps of a millisecond, so that
its writing (about twice a second) is included. The slow-down is that of a small training with a
data loader, in pairs of blocks with and without the hook in random order; it uses a GPU if torch
has one.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import median_interval, write_results
from wattlaw.running.instrumentation import instrumented_environment

STEP_S = 0.001


def hook_times_us(seconds: float) -> dict[str, float]:
    """Return the mean time per step of the hook, of the loader's hooks, and of one empty call."""
    import torch

    steps: Any = sys.modules["_wattlaw.step_hook"]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = torch.nn.Linear(8, 8, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps._after_step(optimizer, (), {})  # opens the file
    iterator = iter(torch.utils.data.DataLoader(range(10**9), batch_size=1, sampler=range(10**9)))
    batch = next(iterator)
    spent_ns = {"step": 0, "loader": 0, "clock": 0}
    count, end_s = 0, time.monotonic() + seconds
    while time.monotonic() < end_s:
        wait_ns = time.perf_counter_ns() + int(STEP_S * 1e9)
        while time.perf_counter_ns() < wait_ns:
            pass
        times_ns = [time.perf_counter_ns()]
        times_ns.append(time.perf_counter_ns())
        steps.recorder.loaded.index_drawn(iterator, [0], steps.recorder.steps)
        steps.recorder.loaded.batch_fetched(
            iterator, batch, waited_ns=0, is_evaluation=False, is_ahead=False
        )
        times_ns.append(time.perf_counter_ns())
        steps._after_step(optimizer, (), {})
        times_ns.append(time.perf_counter_ns())
        for name, begin, end in zip(
            ("clock", "loader", "step"), times_ns, times_ns[1:], strict=False
        ):
            spent_ns[name] += end - begin
        count += 1
    return {name: spent / count / 1e3 for name, spent in spent_ns.items()}


def paired_times_s(pairs: int, block_steps: int) -> list[dict[bool, float]]:
    """Return the time of a block of steps with and without the hooks, for each pair of blocks."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    steps: Any = sys.modules["_wattlaw.step_hook"]
    iterators: Any = torch.utils.data.dataloader._BaseDataLoaderIter
    names = ("_next_index", "__next__")
    hooked = {name: getattr(iterators, name) for name in names}
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(32 * block_steps, 64), torch.randint(10, (32 * block_steps,)))

    def block() -> float:
        begun_s = time.perf_counter()
        for x, y in DataLoader(data, batch_size=32):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x.to(device)), y.to(device)).backward()
            optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begun_s

    block()
    order, results = random.Random(0), []  # noqa: S311 - not for secrets
    for _ in range(pairs):
        times_s = {}
        for with_hook in order.sample((True, False), 2):
            for name in names:
                setattr(iterators, name, hooked[name] if with_hook else hooked[name].__wrapped__)
            (steps.recorder.off.discard if with_hook else steps.recorder.off.add)("steps")
            times_s[with_hook] = block()
        results.append(times_s)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--block-steps", type=int, default=200)
    parser.add_argument("--hardware", default="cpu2", help="of the results file's name")
    options = parser.parse_args()
    if "WATTLAW_STEPS" not in os.environ:  # Python imports the hook at its start
        with tempfile.TemporaryDirectory() as folder:
            environment = instrumented_environment(os.environ, Path(folder) / "steps")
            subprocess.run([sys.executable, *sys.argv], env=environment, check=True)
        return
    times_us = hook_times_us(options.seconds)
    times_s = paired_times_s(options.pairs, options.block_steps)
    slowdowns = [pair[True] / pair[False] - 1 for pair in times_s]
    lost_us = [(pair[True] - pair[False]) / options.block_steps * 1e6 for pair in times_s]
    write_results(
        "instrumentation",
        options.hardware,
        {
            "step_hook_us": times_us["step"] - times_us["clock"],
            "loader_hooks_us": times_us["loader"] - times_us["clock"],
            "step_us": statistics.median(pair[False] for pair in times_s)
            / options.block_steps
            * 1e6,
            "lost_us_per_step": statistics.median(lost_us),
            "lost_us_per_step_interval": median_interval(lost_us),
            "slowdown": statistics.median(slowdowns),
            "slowdown_interval": median_interval(slowdowns),
            "pairs": options.pairs,
            "steps_per_block": options.block_steps,
        },
    )


if __name__ == "__main__":
    main()
