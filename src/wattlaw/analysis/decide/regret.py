"""The regret of choosing a setting: how much worse it is than the best one."""

from collections.abc import Callable, Sequence

import numpy as np

from wattlaw.analysis.predict.observation import Floats
from wattlaw.study.question import Question
from wattlaw.study.setting import Setting

#: A setting that misses a constraint by a share is as bad as one that costs more by this multiple.
_PENALTY = 2.0
#: The regret of a layout that does not fit into memory. One that may be slower is as bad: its draws
#: have no mean, since now and then a layout is slow for reasons that no model has.
UNFIT = 2.0


#: Time and energy of jobs beside training, for each setting, maybe in each draw.
Beside = tuple[Floats | float, Floats | float]


def regrets(
    question: Question, settings: Sequence[Setting], time_s: Floats, energy_j: Floats | None,
    beside: Beside = (0.0, 0.0),
) -> Floats:  # fmt: skip
    """Return the regret of choosing each of some allowed settings, in each draw.

    It is the goal over that of the best setting, minus 1; and twice the share by which a constraint
    is missed, or if its time is infinite: it does not fit into memory. GPU-hours replace an energy
    that is not known; an energy budget is then not checked.
    ``time_s`` and ``energy_j`` are of one sample, shape (draws, settings). ``beside`` is what a job
    takes beside its training, which its bounds include.
    """
    gpus = np.array([item.gpus for item in settings], dtype=float)
    times, energies = _of_training(question, settings, time_s, energy_j)
    goal = _goal(question, times, energies, gpus)
    missing = missed(question, settings, time_s, energy_j, beside)
    meets = missing <= 0
    best = np.where(meets, goal, np.inf).min(1)
    # Where no setting meets the constraints, the one that misses them least is right.
    nearest = goal[np.arange(len(goal)), missing.argmin(1)]
    best = np.where(meets.any(1), best, nearest)[:, None]
    unavoidable = missing.min(1)[:, None]
    with np.errstate(invalid="ignore"):
        regret: Floats = np.maximum(0.0, goal / best - 1)
        regret = np.where(meets, regret, regret + _PENALTY * (missing - unavoidable))
    return np.where(np.isfinite(times), regret, UNFIT)


def missed(
    question: Question, settings: Sequence[Setting], time_s: Floats, energy_j: Floats | None,
    beside: Beside = (0.0, 0.0),
) -> Floats:  # fmt: skip
    """Return the share by which each setting misses a constraint, 0 if none; as ``regrets``."""
    times, energies = _of_training(question, settings, time_s, energy_j)
    job_s = times + beside[0]
    hours = job_s * np.array([item.gpus for item in settings]) / 3600
    slowest = question.slowest_s
    if question.max_slowdown is not None:
        slowest = times.min(1)[:, None] * (1 + question.max_slowdown)
    result: Floats = np.zeros_like(times)
    for values, bound in (
        (job_s, question.deadline_s),
        (None if energies is None else energies + beside[1], question.energy_budget_j),
        (hours, question.max_gpu_hours),
        (times, slowest),
    ):
        if values is not None and bound is not None:
            result = np.maximum(result, values / bound - 1)
    return result


def _of_training(
    question: Question, settings: Sequence[Setting], time_s: Floats, energy_j: Floats | None
) -> tuple[Floats, Floats | None]:
    by_batch, usual = question.samples_by_batch, question.samples or 1.0
    samples = np.array([by_batch.get(item.global_batch or 0.0, usual) for item in settings])
    return time_s * samples, None if energy_j is None else energy_j * samples


def _goal(question: Question, times: Floats, energies: Floats | None, gpus: Floats) -> Floats:
    gpu_s, goal = times * gpus, question.minimize or "energy"
    if energies is None:
        instead = {"time": times, "edp": gpu_s * times}
        return instead.get(goal, gpu_s)  # the price of GPU-hours is proportional
    hours, (per_joule, per_hour) = gpu_s / 3600, question.prices
    goals: dict[str, Callable[[], Floats]] = {
        "energy": lambda: energies,
        "carbon": lambda: energies,  # proportional to it
        "time": lambda: times,
        "gpu_hours": lambda: hours,
        "edp": lambda: energies * times,
        "cost": lambda: per_hour * hours + per_joule * energies,
    }
    return goals[goal]()
