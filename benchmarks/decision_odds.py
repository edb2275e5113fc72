"""How often a setting is right, by the probability that the draws of a decision state.

The planner decides on grids of the kinds of truths that choose sizes (benchmarks/prediction.py), of
GPUs x batch, at tolerances of 5 and 2 %. After each run, the leading and the likeliest other
settings are right or not. Printed is by which factor the odds of the other settings are higher than
stated, with its 90 % interval by a bootstrap over decisions, each of which counts once. Its lower
end is ``_ODDS`` of src/wattlaw/analysis/decide/next_runs.py.
"""

import argparse
from itertools import pairwise

import numpy as np
import numpy.typing as npt

import truths
from decisions_data import STEPS, Grid
from prediction import CHOSE
from wattlaw.analysis.decide import next_runs
from wattlaw.analysis.decide.evidence import Candidate
from wattlaw.analysis.predict import Observation
from wattlaw.study.setting import Setting

GPUS, BATCHES = (1, 2, 4, 8, 16, 32, 64, 128), (0.25, 0.5, 1, 2, 4)
#: Settings that are hardly right say little; the odds of certain ones are infinite.
LEAST, MOST = 0.3, 0.995
LEVELS = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.01)
Steps = list[tuple[float, bool]]  # the probability that is stated, and whether it is right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=20, help="of each kind and tolerance")
    jobs = parser.parse_args().jobs
    next_runs._ODDS = 1.0
    kinds = [kind for kind in truths.KINDS if kind in CHOSE]
    found = [
        decision(kind, number, tolerance)
        for tolerance in (0.05, 0.02)
        for number in range(jobs)
        for kind in kinds
    ]
    for name, index in (("leading", 0), ("others", 1)):
        print(name)
        stated, right = np.array([step for item in found for step in item[index]]).T
        for low, high in pairwise(LEVELS):
            at = (low <= stated) & (stated < high)
            if at.any():
                print(f"stated {stated[at].mean():.2f}, right {right[at].mean():.2f} of {at.sum()}")
    low, middle, high = factors([item[1] for item in found if item[1]])
    print(f"odds of others, times stated: {middle:.2f} ({low:.2f} to {high:.2f})")
    print(f"decisions right: {sum(item[0][-1][1] for item in found)} of {len(found)}")


def decision(kind: str, number: int, tolerance: float) -> tuple[Steps, Steps]:
    """Return the steps of the leading and of the likeliest other settings of one question."""
    grid = zoo_grid(kind, number, tolerance)
    questions = list(grid.questions())
    question = questions[(number + len(kind)) % len(questions)][1]
    true, dice = grid.regrets(question), np.random.default_rng([number, 1])
    left, seen = [Candidate(item, STEPS) for item in grid.settings], []
    leading: Steps = []
    others: Steps = []
    state = next_runs.plan(question, left, seen, at_once=len(left))
    while not state.stopped_because:
        for proposal in state.proposals:
            left.remove(proposal.candidate)
            seen.append(grid.measure(proposal.candidate.setting, dice))
        state = next_runs.plan(question, left, seen)
        leading.append((state.probability, true[state.setting] <= tolerance))
        others += [
            (item.probability, true[item.setting] <= tolerance)
            for item in state.others
            if item.probability >= LEAST
        ]
    return leading, others


def zoo_grid(kind: str, number: int, tolerance: float) -> Grid:
    dice = np.random.default_rng([number, *kind.encode()])
    machine = truths.Machine(dice)
    step = truths.KINDS[kind][0](machine)
    # As in ``truths.draw``.
    noise, session, allocation = (dice.uniform(0.003, 0.015), *dice.uniform(0, [0.02, 0.03]))
    settings = [
        Setting.packed(gpus, machine.node_gpus, local_batch=float(int(machine.batch * factor)))
        for gpus in GPUS
        if gpus <= 16 * machine.node_gpus
        for factor in BATCHES
    ]
    times = {
        item: step(truths.Place(item.gpus, item.nodes, int(item.local_batch))) for item in settings
    }

    def measure(setting: Setting, dice: np.random.Generator) -> Observation:
        own = np.random.default_rng([number, setting.gpus])  # one session for each GPU count
        shared = own.normal(0, session) + own.normal(0, allocation) * (setting.nodes > 1)
        factor = np.exp(shared + noise * dice.standard_t(5))
        return Observation(setting, times[setting] * float(factor))

    truth = {item: (time_s, None) for item, time_s in times.items()}
    return Grid("zoo", f"{kind} {number}", truth, measure, tolerance)


def factors(decisions: list[Steps]) -> npt.NDArray[np.float64]:
    """Return the 5th, 50th and 95th percentile of the factor of the likeliest odds."""
    grid = np.exp(np.linspace(-1, 3, 200))
    scores = []
    for steps in decisions:
        stated, right = np.array(steps).T[:, :, None]
        odds = grid * np.minimum(stated, MOST) / (1 - np.minimum(stated, MOST))
        scores.append(np.log(np.where(right, odds, 1.0) / (1 + odds)).mean(0))
    table, dice = np.array(scores), np.random.default_rng(0)
    drawn = dice.integers(len(table), size=(1000, len(table)))
    return np.quantile(grid[table[drawn].sum(1).argmax(1)], [0.05, 0.5, 0.95])


if __name__ == "__main__":
    main()
