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
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from layouts import _3B, _H100_GIB, nanotron
from prediction_data import FOLDER
from wattlaw.analysis.decide.evidence import Candidate, may_fit_memory
from wattlaw.analysis.decide.next_runs import plan
from wattlaw.analysis.predict.observation import Observation
from wattlaw.analysis.predict.peak_memory import Memory, Peak
from wattlaw.study.question import Question
from wattlaw.study.setting import Setting

#: A run starts, loads and compiles, and then takes its steps.
START_S, STEPS = 60.0, 20
#: Steps of a short run, and the coefficient of variation of a step.
SHORT, STEP_VARIATION = 5, 0.1
KNOWN = 60
QUESTION = Question("time", tolerance=0.05)
#: Of a setting that failed or is not in the table, for Optuna: slower than any other.
WORST = 10.0
#: Optuna may propose such settings and repeats; after so many of them one is drawn at random.
REPEATS = 20


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
    slowest_s: float | None = None  # to choose a run, of a core


class Grid:
    """The layouts on a number of nodes."""

    def __init__(self, rows: Sequence[tuple[Setting, Any]], nodes: int) -> None:
        self.nodes = nodes
        self.rows = {setting: row for setting, row in rows if setting.nodes == nodes}
        self.fewer = [(setting, row) for setting, row in rows if (setting.nodes or 0) < nodes]
        self.best_s = min(self.step_s(item) for item in self.rows if self.runs(item))
        self.total_s = sum(map(self.cost_s, self.rows))

    def runs(self, setting: Setting) -> bool:
        return bool(self.rows[setting].status == "ok")

    def step_s(self, setting: Setting) -> float:
        return float(self.rows[setting].step_time_s)

    def cost_s(self, setting: Setting, steps: int = STEPS) -> float:
        return START_S + (steps * self.step_s(setting) if self.runs(setting) else 0.0)

    def regret(self, setting: Setting) -> float:
        return self.step_s(setting) / self.best_s - 1

    def outcome(self, name: str, seed: int, made: Sequence[Setting], pick: Setting) -> Outcome:
        share = sum(map(self.cost_s, made)) / self.total_s
        failed = sum(not self.runs(item) for item in made)
        return Outcome(name, self.nodes, seed, share, self.regret(pick), len(made), failed)


def grids() -> dict[int, Grid]:
    table = pd.read_csv(FOLDER / "parallel_layouts.csv")
    # A stage needs a layer; three rows have a contradictory batch, and no time.
    rows = [
        (setting, row)
        for setting, row in nanotron(table)
        if setting.pp <= _3B.layers and not (row.status == "ok" and np.isnan(row.step_time_s))
    ]
    return {nodes: Grid(rows, nodes) for nodes in sorted({item.nodes or 0 for item, _ in rows})}


def _peak(setting: Setting, row: Any) -> Peak:
    peak_gib = float(row.memory_gib) if row.memory_gib > 0 else None
    return Peak(setting, _3B, _H100_GIB, peak_gib, row.status == "ok")


def ours(grid: Grid, seed: int, *, name: str, known: int = 0, steps: int = STEPS) -> Outcome:
    dice = np.random.default_rng([seed, 1])
    settings = list(grid.rows)
    left = [Candidate(settings[at], steps, START_S) for at in dice.permutation(len(settings))]
    before = [grid.fewer[at] for at in dice.permutation(len(grid.fewer))[:known]]
    seen = [
        Observation(setting, float(row.step_time_s), network=_3B)
        for setting, row in before
        if row.status == "ok"
    ]
    peaks = [_peak(*pair) for pair in before]
    made: list[Setting] = []
    seconds, error = 0.0, 0.0 if steps == STEPS else STEP_VARIATION / np.sqrt(steps)
    while True:
        begun_s = time.process_time()
        missing = [item.setting for item in peaks if not item.fitted]
        able = [item for item in left if may_fit_memory(item.setting, missing)]
        memory = Memory(_3B, _H100_GIB, tuple(peaks))
        state = plan(QUESTION, able, seen, settings=settings, memory=memory, seed=seed)
        seconds = max(seconds, time.process_time() - begun_s)
        if state.stopped_because:
            break
        chosen = state.proposals[0].candidate
        left.remove(chosen)
        made.append(chosen.setting)
        peaks.append(_peak(chosen.setting, grid.rows[chosen.setting]))
        if grid.runs(chosen.setting):
            step_s = grid.step_s(chosen.setting) * float(np.exp(error * dice.standard_normal()))
            seen.append(Observation(chosen.setting, step_s, network=_3B))
    assert state.setting is not None
    found = asdict(grid.outcome(name, seed, made, state.setting))
    spent_s = sum(grid.cost_s(item, steps) for item in made)
    found |= {"stated": state.probability, "reason": state.stopped_because, "slowest_s": seconds}
    return Outcome(**found | {"share": spent_s / grid.total_s})


def least_parallel(grid: Grid, seed: int, *, name: str) -> Outcome:
    """The largest micro-batch, with sharded states, of the least model parallelism that fits."""
    made: list[Setting] = []
    for setting in sorted(grid.rows, key=_parallelism):
        made.append(setting)
        if grid.runs(setting):
            break
    return grid.outcome(name, seed, made, made[-1])


def _parallelism(setting: Setting) -> tuple[float, ...]:
    batch = setting.micro_batch or 0.0
    return setting.tp * setting.pp, setting.tp, -batch, setting.sharding == "none"


def random_order(grid: Grid, seed: int, *, name: str) -> Outcome:
    settings = list(grid.rows)
    order = [settings[at] for at in np.random.default_rng([seed, 2]).permutation(len(settings))]
    end = next(at for at, item in enumerate(order) if _is_good(grid, item))
    return grid.outcome(name, seed, order[: end + 1], order[end])


def _is_good(grid: Grid, setting: Setting) -> bool:
    return grid.runs(setting) and grid.regret(setting) <= QUESTION.tolerance


def tpe(grid: Grid, seed: int, *, name: str) -> Outcome:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    names = ("tp", "pp", "micro_batch", "sharding")
    places = {tuple(getattr(item, axis) for axis in names): item for item in grid.rows}
    axes = [sorted({place[at] for place in places}) for at in range(len(names))]
    ranges = {
        axis: optuna.distributions.IntDistribution(0, len(values) - 1)
        for axis, values in zip(names, axes, strict=True)
    }
    dice, made, repeats = np.random.default_rng([seed, 2]), list[Setting](), 0
    while not (made and _is_good(grid, made[-1])):
        trial = study.ask(ranges)
        if repeats >= REPEATS:
            rest = [place for place, item in places.items() if item not in made]
            drawn, repeats = rest[dice.integers(len(rest))], 0
            params = {axis: axes[at].index(drawn[at]) for at, axis in enumerate(names)}
            study.tell(trial, WORST)
            study.enqueue_trial(params)
            trial = study.ask(ranges)
        setting = places.get(tuple(axes[at][trial.params[axis]] for at, axis in enumerate(names)))
        value = WORST
        if setting is not None and grid.runs(setting):
            value = float(np.log(grid.step_s(setting)))
        study.tell(trial, value)
        if setting is None or setting in made:
            repeats += 1
        else:
            made.append(setting)
            repeats = 0
    return grid.outcome(name, seed, made, made[-1])


def halving(grid: Grid, seed: int, *, name: str) -> Outcome:
    """Successive halving of all layouts: 5 steps of each, then 10 and 20 of the best third."""
    dice, spent_s, runs = np.random.default_rng([seed, 2]), 0.0, 0
    left = list(grid.rows)
    for steps in (SHORT, 2 * SHORT, STEPS):
        spent_s += sum(grid.cost_s(item, steps) for item in left)
        runs += len(left)
        able = [item for item in left if grid.runs(item)]
        error = STEP_VARIATION / np.sqrt(steps) if steps < STEPS else 0.0
        factors = np.exp(error * dice.standard_normal(len(able)))
        times = [grid.step_s(item) for item in able] * factors
        left = [able[at] for at in times.argsort()[: max(1, len(able) // 3)]]
    found = asdict(grid.outcome(name, seed, list(grid.rows), left[0]))
    return Outcome(**found | {"share": spent_s / grid.total_s, "runs": runs})


METHODS: dict[str, Callable[..., Outcome]] = {
    "wattlaw": ours,
    "wattlaw, after fewer nodes": partial(ours, known=KNOWN),
    "by 5 steps, wattlaw": partial(ours, steps=SHORT),
    "least model parallelism that fits": least_parallel,
    "random order": random_order,
    "Optuna TPE": tpe,
    "successive halving": halving,
}


def table(found: Sequence[Outcome]) -> str:
    lines = [
        "| nodes | method | seeds | share, median | p90 | runs | failed | within 5 % | regret, p90 "
        "| stated | slowest choice |",
        "|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]  # fmt: skip
    for nodes in sorted({item.nodes for item in found}):
        for method in METHODS:
            rows = [item for item in found if (item.nodes, item.method) == (nodes, method)]
            if not rows:
                continue
            shares, regrets = ([getattr(row, name) for row in rows] for name in ("share", "regret"))
            stated = [row.stated for row in rows if row.stated is not None]
            slowest = [row.slowest_s for row in rows if row.slowest_s is not None]
            cells = [
                nodes, method, len(rows), f"{np.median(shares):.1%}",
                f"{np.quantile(shares, 0.9):.1%}", f"{np.mean([row.runs for row in rows]):.1f}",
                f"{np.mean([row.failed for row in rows]):.1f}",
                f"{np.mean([regret <= QUESTION.tolerance for regret in regrets]):.0%}",
                f"{np.quantile(regrets, 0.9):.0%}",
                f"{np.mean(stated):.2f}" if stated else "",
                f"{max(slowest):.1f} s" if slowest else "",
            ]  # fmt: skip
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", default="2,8,16,32")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--method", default="", help="methods whose name starts with this")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--keep", type=Path, help="a file of outcomes, which are not made again")
    arguments = parser.parse_args()
    end_s = time.monotonic() + 60 * arguments.minutes
    found: list[Outcome] = []
    if arguments.keep is not None and arguments.keep.exists():
        found = [Outcome(**json.loads(line)) for line in arguments.keep.read_text().splitlines()]
    every = grids()
    cases = [
        (seed, nodes, method)
        for seed in range(arguments.seeds)
        for nodes in map(int, arguments.nodes.split(","))
        for method in METHODS
        if method.startswith(arguments.method)
    ]
    done = {(item.seed, item.nodes, item.method) for item in found}
    for seed, nodes, method in cases:
        if (seed, nodes, method) in done or time.monotonic() > end_s:
            continue
        found.append(METHODS[method](every[nodes], seed, name=method))
        if arguments.keep is not None:
            with arguments.keep.open("a") as file:
                file.write(json.dumps(asdict(found[-1])) + "\n")
    print(table(found))


if __name__ == "__main__":
    main()
