"""Opponents of the decision benchmark: random order and Optuna's samplers.

They do not stop by themselves: a search ends when the setting that it measured as the best has a
true regret within the limit, which only someone with the whole grid knows.
"""

from collections import defaultdict

import numpy as np

from decisions_data import STEPS, Grid, Outcome
from wattlaw.analysis.decide import Question
from wattlaw.study.setting import Setting

RANDOM, TPE, GP = "random order", "Optuna TPE", "Optuna GP"
#: Optuna may propose settings again; after so many of them one is drawn at random.
REPEATS = 20
#: Runs after which the GP sampler gives up; each takes longer than the one before.
MOST_GP_RUNS = 60


class Search:
    """Runs of a method without a rule to stop, until the best measured setting is good."""

    def __init__(self, grid: Grid, question: Question, seed: int) -> None:
        self.grid = grid
        self.dice = np.random.default_rng([seed, 2])
        self.seen: dict[Setting, float] = {}
        self.hours = 0.0
        self.regrets = grid.regrets(question)
        self.question = question
        self.fastest_s = float(grid.times.min())

    def run(self, setting: Setting) -> float:
        """Return the objective of a run: the log of the goal, and missed constraints."""
        if setting in self.seen:
            return self.seen[setting]
        shown = self.grid.measure(setting, self.dice)
        self.hours += setting.gpus * STEPS * shown.step_time_s / 3600
        time_s = shown.step_time_s / setting.samples
        energy = time_s * setting.gpus * (shown.power_per_gpu_w or 1.0)
        goals = {"energy": energy, "gpu_hours": time_s * setting.gpus, "edp": energy * time_s}
        bounds = [self.question.deadline_s]
        if self.question.max_slowdown is not None:
            bounds.append(self.fastest_s * (1 + self.question.max_slowdown))
        missed = max([0.0, *(time_s / bound - 1 for bound in bounds if bound)])
        # A setting that misses a constraint is worse than any that meets it.
        self.seen[setting] = float(np.log(goals[self.question.minimize])) + 2 * missed + (
            5.0 if missed else 0.0
        )  # fmt: skip
        return self.seen[setting]

    @property
    def regret(self) -> float:
        """Return the true regret of the setting that was measured as the best."""
        return self.regrets[min(self.seen, key=lambda item: self.seen[item])]

    @property
    def is_good(self) -> bool:
        """Return whether the best measured setting is within the tolerance."""
        return bool(self.seen) and self.regret <= self.grid.tolerance

    def unseen(self) -> Setting:
        """Return a random setting that was not measured."""
        rest = [item for item in self.grid.settings if item not in self.seen]
        return rest[self.dice.integers(len(rest))]

    @property
    def is_over(self) -> bool:
        """Return whether nothing is left to do."""
        return self.is_good or len(self.seen) == len(self.grid.settings)

    def outcome(self, name: str, method: str, seed: int) -> Outcome:
        """Return how the search did."""
        return Outcome(
            self.grid.contest, self.grid.name, name, method, seed,
            min(1.0, self.hours / self.grid.grid_hours), self.regret, self.grid.tolerance,
            len(self.seen),
        )  # fmt: skip


def random_order(grid: Grid, name: str, question: Question, seed: int) -> Outcome:
    search = Search(grid, question, seed)
    while not search.is_over:
        search.run(search.unseen())
    return search.outcome(name, RANDOM, seed)


def tpe(grid: Grid, name: str, question: Question, seed: int) -> Outcome:
    return _optuna(grid, name, question, seed, TPE)


def gp(grid: Grid, name: str, question: Question, seed: int) -> Outcome:
    return _optuna(grid, name, question, seed, GP)


def _optuna(grid: Grid, name: str, question: Question, seed: int, method: str) -> Outcome:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    kind = optuna.samplers.TPESampler if method == TPE else optuna.samplers.GPSampler
    study = optuna.create_study(sampler=kind(seed=seed))
    axes, places = _axes(grid)
    ranges = {
        f"axis {index}": optuna.distributions.IntDistribution(0, len(axis) - 1)
        for index, axis in enumerate(axes)
        if len(axis) > 1
    }
    search, repeats = Search(grid, question, seed), 0
    while not search.is_over and not (method == GP and len(search.seen) >= MOST_GP_RUNS):
        trial = study.ask(ranges)
        where = tuple(trial.params.get(f"axis {index}", 0) for index in range(len(axes)))
        setting = places[where]
        repeats = repeats + 1 if setting in search.seen else 0
        study.tell(trial, search.run(setting))
        if repeats >= REPEATS:
            drawn = search.unseen()
            at = next(place for place, item in places.items() if item == drawn)
            params = {f"axis {i}": value for i, value in enumerate(at) if f"axis {i}" in ranges}
            study.add_trial(
                optuna.create_trial(params=params, distributions=ranges, value=search.run(drawn))
            )
            repeats = 0
    if not search.is_good:  # it gave up: the rest of the grid has to be measured
        while not search.is_over:
            search.run(search.unseen())
    return search.outcome(name, method, seed)


def _axes(grid: Grid) -> tuple[list[list[object]], dict[tuple[int, ...], Setting]]:
    """Return the axes of a grid and its setting at each place; absent ones have a neighbour's."""

    def key(item: Setting) -> tuple[float, ...]:
        limit = item.power_limit_w or item.clock_limit_mhz or np.inf
        return (item.gpus, item.local_batch or 0, limit)

    keys = [key(item) for item in grid.settings]
    axes: list[list[object]] = [sorted({row[i] for row in keys}) for i in range(3)]
    groups: dict[tuple[float, ...], list[Setting]] = defaultdict(list)
    for item, row in zip(grid.settings, keys, strict=True):
        groups[row].append(item)
    for each in groups.values():
        each.sort(key=lambda item: (item.nodes or 0, item.gpus_per_node or ()))
    widest = max(len(each) for each in groups.values())
    axes.append(list(range(widest)))
    table = np.array([[axes[i].index(value) for i, value in enumerate(row)] for row in groups])
    listed = list(groups.values())
    places = {}
    for place in np.ndindex(*(len(axis) for axis in axes)):
        near = listed[int(np.abs(table - place[:3]).sum(1).argmin())]
        places[place] = near[place[3] * len(near) // widest]
    return axes, places


OPPONENTS = {RANDOM: random_order, TPE: tpe, GP: gp}
