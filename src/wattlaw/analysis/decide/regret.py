"""The regret of choosing a setting, and the value of a measurement: how much the regret falls.

The regret is how much worse a setting is than the best one. The value is the knowledge gradient
over a discrete set (Frazier, Powell and Dayanik 2008, doi 10.1137/070693424) by draws of the
posterior: an outcome of the measurement is taken from one draw, all draws are weighted by how well
they agree with it, and the best choice under these weights is compared with the best one now.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from wattlaw.analysis.predict.observation import Floats
from wattlaw.study.question import Question
from wattlaw.study.setting import Setting

#: A setting that misses a constraint by a share is as bad as one that costs more by this multiple.
_PENALTY = 2.0
#: The regret of a layout that does not fit into memory. One that may be slower is as bad: its draws
#: have no mean, since now and then a layout is slow for reasons that no model has.
UNFIT = 2.0
#: Outcomes of each measurement.
_OUTCOMES = 24
#: Outcomes agree within this share of their standard deviation at least: draws are few.
_SMOOTHING = 0.25
#: Settings that are compared after a run: those most often the best, and those of least regret.
_LIKELY = 60
#: Standard deviations of what random numbers explain.
_CHANCE = 2.0
#: Candidates of one product of matrices.
_AT_ONCE = 100

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
    takes beside its training, which its goal and bounds include.
    """
    gpus = np.array([item.gpus for item in settings], dtype=float)
    times, energies = _of_training(question, settings, time_s, energy_j)
    jobs_j = None if energies is None else energies + beside[1]
    goal = _goal(question, times + beside[0], jobs_j, gpus)
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
        slowest = job_s.min(1)[:, None] * (1 + question.max_slowdown)
    result: Floats = np.zeros_like(times)
    for values, bound in (
        (job_s, question.deadline_s),
        (None if energies is None else energies + beside[1], question.energy_budget_j),
        (hours, question.max_gpu_hours),
        (job_s, slowest),
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


#: Logarithms of what candidates' runs would show, of time and, where it matters, of power: shape
#: (draws, candidates), with the standard deviations of a run.
Outcomes = Sequence[tuple[Floats, Floats]]


def expected_regrets(regrets: Floats, outcomes: Outcomes, seed: int) -> Floats:
    """Return the expected regret of the best choice after each candidate's run.

    ``regrets`` has shape (draws, settings); ``outcomes`` are of the candidates in the same draws.
    """
    dice = np.random.default_rng([seed, 5])
    draws, candidates = outcomes[0][0].shape
    truth = dice.choice(draws, size=min(_OUTCOMES, draws), replace=False)
    # The settings that may be the best choice after a run.
    is_best = np.bincount(regrets.argmin(1), minlength=regrets.shape[1])
    order = np.lexsort((regrets.mean(0), -is_best))
    by_mean = np.argsort(regrets.mean(0), kind="stable")
    choices = np.union1d(order[:_LIKELY], by_mean[:_LIKELY])
    likely = regrets[:, choices].astype(np.float32)
    result = np.empty(candidates)
    for start in range(0, candidates, _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        distances = [_distance(own[:, part], sd[part], truth, dice) for own, sd in outcomes]
        distance = np.sum(distances, axis=0)
        distance -= distance.min(2, keepdims=True)
        weights = np.exp(-0.5 * distance)
        weights /= weights.sum(2, keepdims=True)
        # One product of matrices: many small ones take longer where other programs use the cores.
        after = weights.reshape(-1, draws) @ likely
        result[part] = after.min(1).reshape(-1, truth.size).mean(1)
    return result


def explained(target: Floats, outcomes: Outcomes, seed: int) -> Floats:
    """Return the share of the variance of a target that each candidate's run would explain.

    It is that of a regression on what runs would show and its square, over the draws, less what
    random numbers explain. Squares show how large the model's error is. ``target`` has shape
    (draws,); ``outcomes`` are of the candidates in the same draws.
    """
    dice = np.random.default_rng([seed, 6])
    wanted = (target - target.mean()) / max(float(target.std()), 1e-12)
    rows = []
    for values, noise in outcomes:
        shown = values + noise * dice.standard_normal(values.shape)
        shown = (shown - shown.mean(0)) / (shown.std(0) + 1e-12)
        rows += [shown, shown**2 - 1]
    table = np.array(rows).transpose(2, 0, 1)
    matrices = table @ table.transpose(0, 2, 1) + 1e-6 * target.size * np.eye(len(rows))
    slopes = table @ wanted
    shares = (slopes * np.linalg.solve(matrices, slopes[..., None])[..., 0]).sum(1) / target.size
    chance = len(rows) + _CHANCE * np.sqrt(2 * len(rows))
    return np.asarray(np.maximum(shares - chance / target.size, 0.0))


def improvements(regret: Floats, others: Floats) -> Floats:
    """Return by how much choosing each of some others is expected to be better, where it is.

    ``regret`` of the leading choice has shape (draws,), and ``others`` (draws, candidates). For
    parallel layouts it finds the best with fewer runs than ``explained``: 4 instead of 11 of the
    3B model on 4 nodes, as right (10 seeds of benchmarks/layout_decisions.py).
    """
    return np.asarray(np.maximum(regret[:, None] - others, 0.0).mean(0))


def _distance(
    values: Floats, noise: Floats, truth: npt.NDArray[np.int64], dice: np.random.Generator
) -> npt.NDArray[np.float32]:
    """Return the squared distance of draws from outcomes, shape (candidates, outcomes, draws)."""
    width = np.hypot(noise, _SMOOTHING * values.std(0)) + 1e-12
    seen = values[truth] + noise * dice.standard_normal((truth.size, values.shape[1]))
    here = (values / width).T.astype(np.float32)
    there = (seen / width).T.astype(np.float32)
    squares: npt.NDArray[np.float32] = (there[:, :, None] - here[:, None, :]) ** 2
    return squares
