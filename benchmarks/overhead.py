"""The cost of sampling: processor time of the sampler and of other tools, slowdown of training.

Run with ``make bench-overhead``. All tools read the same boards of a fake driver at the same rate,
one after the other in random order. A call of the fake driver takes 2 microseconds, far less than
one of a real driver, so the comparison shows the cost of the tools themselves.
"""

import argparse
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from common import (
    cores_used,
    end_tree,
    median_interval,
    paired_slowdowns,
    training_block,
    write_results,
)
from wattlaw.measure.devices.meter import Target
from wattlaw.measure.telemetry import sampler

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from fake_nvml import FakeGpus

PEERS = ("zeus", "codecarbon", "polling")
SETTLE_S = 3.0


def start_tool(tool: str, hz: float, folder: Path, python: Path,
               more: Mapping[str, str] | None = None,
               root_pid: int | None = None) -> "subprocess.Popen[str]":  # fmt: skip
    """Start a tool on the boards of a folder, if any, and wait until it monitors.

    wattlaw watches the processes below ``root_pid``, which are those of this process if not set.
    """
    boards = folder / "boards"
    environment = os.environ | (FakeGpus(boards).environment() if boards.exists() else {})
    environment |= more or {}
    if tool in PEERS:
        line = [str(python), str(Path(__file__).with_name("peer.py")), tool, repr(hz)]
        process = subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, text=True)
        if process.stdout is None or process.stdout.readline() != "ready\n":
            raise SystemExit(f"{tool} could not be started")
        return process
    live = Path(tempfile.mkdtemp(dir=folder))
    line = sampler.command(live, socket.gethostname(), Target(root_pid or os.getpid(), 1 / hz))
    process = subprocess.Popen(line, env=environment, text=True)
    while not sampler.stream_path(live, socket.gethostname()).exists():
        if process.poll() is not None:
            raise SystemExit("the sampler could not be started")
    return process


def compare(boards: int, hz: float, buffers: bool, rounds: int, watch_s: float, python: Path,
            tools: tuple[str, ...]) -> list[dict[str, object]]:  # fmt: skip
    """Return the share of a core that each tool uses, as the median of several rounds."""
    shares_of: dict[str, list[float]] = {tool: [] for tool in tools}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        FakeGpus.create(folder / "boards", boards, buffers=int(buffers), high_w=250.0)
        for number in range(rounds):
            for tool in random.Random(number).sample(tools, len(tools)):  # noqa: S311
                process = start_tool(tool, hz, folder, python)
                try:
                    shares_of[tool].append(cores_used(process, SETTLE_S, watch_s))
                finally:
                    end_tree(process)
    ours = statistics.median(shares_of["wattlaw"])
    rows: list[dict[str, object]] = []
    for tool, shares in shares_of.items():
        share = statistics.median(shares)
        rows.append(
            {
                "tool": tool,
                "boards": boards,
                "hz": hz,
                "driver_has_buffers": buffers,
                "share_of_a_core": share,
                "share_of_a_core_per_board": share / boards,
                "all_rounds": shares,
                "times_ours": share / ours,
            }
        )
        print(f"{boards} boards, {hz:g} Hz, buffers {buffers}: {tool}: {share:.4%} of a core, "
              f"{share / boards:.4%} per board, {share / ours:.1f} x ours", flush=True)  # fmt: skip
    return rows


def slowdown(pairs: int, hz: float) -> dict[str, object]:
    """Return the slowdown of a training loop while a sampler reads one board."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        FakeGpus.create(folder / "boards", 1, buffers=1)
        block = training_block(batch=64, steps=20)
        process = start_tool("wattlaw", hz, folder, Path())
        try:
            slowdowns = paired_slowdowns(process.pid, block, pairs)
        finally:
            end_tree(process)
    low, high = median_interval(slowdowns)
    return {
        "training": "digits-cnn, batch 64, 20 steps per block, sampler stopped in every second",
        "hz": hz,
        "pairs": pairs,
        "median": statistics.median(slowdowns),
        "median_95_low": low,
        "median_95_high": high,
    }


def main() -> None:
    """Compare all tools, and write the results file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers-python", type=Path, default=Path(".venv-peers/bin/python"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--watch-s", type=float, default=8.0)
    parser.add_argument("--pairs", type=int, default=300)
    options = parser.parse_args()
    rows = []
    for boards in (1, 8):
        for hz in (10.0, 100.0):
            rows += compare(boards, hz, True, options.rounds, options.watch_s,
                            options.peers_python, ("wattlaw", *PEERS))  # fmt: skip
        rows += compare(boards, 10.0, False, options.rounds, options.watch_s,
                        options.peers_python, ("wattlaw", *PEERS))  # fmt: skip
    line = [str(options.peers_python), "-m", "pip", "list", "--format=freeze"]
    packages = subprocess.run(line, capture_output=True, text=True, check=True).stdout.split()
    write_results(
        "overhead",
        f"cpu{os.cpu_count()}",
        {
            "driver": "fake (tests/support/fake_nvml): nothing here ran on a GPU",
            "settings": {
                "rounds": options.rounds,
                "watch_s": options.watch_s,
                "settle_s": SETTLE_S,
            },
            "peers": [
                line for line in packages if line.startswith(("zeus", "codecarbon", "nvidia-ml"))
            ],
            "sampling": rows,
            "training_slowdown": slowdown(options.pairs, 10.0),
        },
    )


if __name__ == "__main__":
    main()
