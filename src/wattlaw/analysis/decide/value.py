"""The value of a measurement: how much the expected regret of the decision falls.

The knowledge gradient over a discrete set (Frazier, Powell and Dayanik 2008, doi 10.1137/070693424)
by draws of the posterior: an outcome of the measurement is taken from one draw, all draws are
weighted by how well they agree with it, and the best choice under these weights is compared with
the best one now.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wattlaw.analysis.predict.observation import Floats

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


@dataclass(frozen=True)
class Outcomes:
    """Logarithms of what a candidate's run would show, shape (draws, candidates).

    ``noise`` is the standard deviation of a run; ``power`` is None if power does not matter.
    """

    time: Floats
    time_noise: Floats
    power: Floats | None
    power_noise: Floats | None


def expected_regrets(regrets: Floats, outcomes: Outcomes, seed: int) -> Floats:
    """Return the expected regret of the best choice after each candidate's run.

    ``regrets`` has shape (draws, settings); ``outcomes`` are of the candidates in the same draws.
    """
    dice = np.random.default_rng([seed, 5])
    draws, candidates = outcomes.time.shape
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
        distance = _distance(outcomes.time[:, part], outcomes.time_noise[part], truth, dice)
        if outcomes.power is not None and outcomes.power_noise is not None:
            distance += _distance(outcomes.power[:, part], outcomes.power_noise[part], truth, dice)
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
    parts = [(outcomes.time, outcomes.time_noise)]
    if outcomes.power is not None and outcomes.power_noise is not None:
        parts.append((outcomes.power, outcomes.power_noise))
    rows = []
    for values, noise in parts:
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
