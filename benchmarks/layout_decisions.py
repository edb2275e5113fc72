"""GPU-hours until a parallel layout is decided, and its regret, on public measurements.

    python benchmarks/layout_decisions.py [--nodes 2,8,16,32] [--seeds 20] [--keep FILE]

A replay of the layouts of a 3B model on H100 (nanotron; ``parallel_layouts.csv`` in the folder that
``WATTLAW_PUBLIC_DATA`` names), by number of nodes. A method sees only the runs that it makes. A run
takes ``START_S`` and ``STEPS`` steps, and one that fails takes ``START_S``; the share is that of
all layouts, failed ones included. "after fewer nodes" knows ``KNOWN`` random runs on fewer nodes,
failed ones included, which another study has paid. Random order and Optuna do not stop by
themselves: theirs are the GPU-hours until the best layout that they measured is within the
tolerance, which only someone with the whole grid knows. Rules were chosen on 1 and 4 nodes.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from layouts import _3B, _H100_GIB, nanotron
from prediction_data import FOLDER
from wattlaw.analysis.decide.candidates import Candidate, Memory, may_fit_memory
from wattlaw.analysis.decide.next_runs import plan
from wattlaw.analysis.predict.observation import Observation
from wattlaw.analysis.predict.peak_memory import Peak
from wattlaw.study.question import Question
from wattlaw.study.setting import Setting

START_S, STEPS = 60.0, 20
KNOWN = 60
QUESTION = Question("time", tolerance=0.05)


@dataclass(frozen=True)
class Outcome:
    method: str
    nodes: int
    seed: int
    share: float  # of the GPU-hours of all layouts
    regret: float
    runs: int
    failed: int
    stated: float | None = None
    reason: str | None = None
    slowest_s: float | None = None  # choosing a run


class Grid:
    """The layouts on a number of nodes."""

    def __init__(self, rows: Sequence[tuple[Setting, Any]], nodes: int) -> None:
        self.nodes = nodes
        self.rows = {setting: row for setting, row in rows if setting.nodes == nodes}
        self.fewer = [(setting, row) for setting, row in rows if (setting.nodes or 0) < nodes]
        times = [row.step_time_s for row in self.rows.values() if row.status == "ok"]
        self.best_s = min(times)
        self.total_s = sum(map(self.cost_s, self.rows))

    def cost_s(self, setting: Setting) -> float:
        row = self.rows[setting]
        return START_S + (STEPS * float(row.step_time_s) if row.status == "ok" else 0.0)

    def regret(self, setting: Setting) -> float:
        return float(self.rows[setting].step_time_s) / self.best_s - 1


def grids() -> dict[int, Grid]:
    table = pd.read_csv(FOLDER / "parallel_layouts.csv")
    # A stage needs a layer; three rows have a contradictory batch, and no time.
    rows = [
        (setting, row)
        for setting, row in nanotron(table)
        if setting.pp <= _3B.layers and not (row.status == "ok" and np.isnan(row.step_time_s))
    ]
    return {nodes: Grid(rows, nodes) for nodes in sorted({item.nodes or 0 for item, _ in rows})}


def _observed(setting: Setting, row: Any) -> Observation:
    return Observation(setting, float(row.step_time_s), network=_3B)


def _peak(setting: Setting, row: Any) -> Peak:
    peak_gib = float(row.memory_gib) if row.memory_gib > 0 else None
    return Peak(setting, _3B, _H100_GIB, peak_gib, row.status == "ok")


def ours(grid: Grid, seed: int, *, known: int = 0) -> Outcome:
    dice = np.random.default_rng([seed, 1])
    settings = list(grid.rows)
    left = [Candidate(settings[at], STEPS, START_S) for at in dice.permutation(len(settings))]
    before = [grid.fewer[at] for at in dice.permutation(len(grid.fewer))[:known]]
    seen = [_observed(*pair) for pair in before if pair[1].status == "ok"]
    peaks = [_peak(*pair) for pair in before]
    spent_s, seconds, failed, runs = 0.0, [0.0], 0, 0
    while True:
        begun_s = time.perf_counter()
        missing = [item.setting for item in peaks if not item.fitted]
        able = [item for item in left if may_fit_memory(item.setting, missing)]
        memory = Memory(_3B, _H100_GIB, tuple(peaks))
        state = plan(QUESTION, able, seen, settings=settings, memory=memory, seed=seed)
        seconds.append(time.perf_counter() - begun_s)
        if state.stopped_because:
            break
        chosen = state.proposals[0].candidate
        row = grid.rows[chosen.setting]
        left.remove(chosen)
        spent_s += grid.cost_s(chosen.setting)
        runs += 1
        peaks.append(_peak(chosen.setting, row))
        if row.status == "ok":
            seen.append(_observed(chosen.setting, row))
        else:
            failed += 1
        if VERBOSE:
            s = chosen.setting
            lead = state.setting
            print(f"  {runs:3d} tp{s.tp} pp{s.pp} dp{s.dp} mb{s.micro_batch} {s.sharding} "
                  f"{row.status} {row.step_time_s:.3f} regret {grid.regret(s):.2f} lead "
                  f"{'' if lead is None else f'{lead.tp} {lead.pp} {lead.micro_batch} {lead.sharding} {grid.regret(lead):.2f}'}"
                  f" p {state.probability} r {state.expected_regret} {seconds[-1]:.2f} s", flush=True)
    assert state.setting is not None
    return Outcome(
        "wattlaw" + (", after fewer nodes" if known else ""), grid.nodes, seed,
        spent_s / grid.total_s, grid.regret(state.setting), runs, failed, state.probability,
        state.stopped_because, max(seconds),
    )  # fmt: skip


VERBOSE = False


def main() -> None:
    global VERBOSE
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", default="2,8,16,32")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--known", type=int, default=0)
    parser.add_argument("-v", action="store_true")
    a = parser.parse_args()
    VERBOSE = a.v
    g = grids()
    for nodes in map(int, a.nodes.split(",")):
        for seed in range(a.seeds):
            b = time.perf_counter()
            o = ours(g[nodes], seed, known=a.known)
            print(nodes, seed, f"share {o.share:.3f} regret {o.regret:.3f} runs {o.runs} failed {o.failed} stated {o.stated:.2f} {o.reason} slowest {o.slowest_s:.1f} total {time.perf_counter()-b:.0f} s", flush=True)


if __name__ == "__main__":
    main()
