"""The value of a measurement: how much the expected regret of the decision falls.

The knowledge gradient over a discrete set (Frazier, Powell and Dayanik 2008, doi 10.1137/070693424)
by draws of the posterior: an outcome of the measurement is taken from one draw, all draws are
weighted by how well they agree with it, and the best choice under these weights is compared with
the best one now.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

#: Outcomes of each measurement.
_OUTCOMES = 24
#: Outcomes agree within this share of their standard deviation at least: draws are few.
_SMOOTHING = 0.25


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

    Parameters
    ----------
    regrets
        Shape (draws, settings).
    outcomes
        Of the candidates.
    seed
        Of the random numbers.
    """
    dice = np.random.default_rng([seed, 5])
    draws, candidates = outcomes.time.shape
    truth = dice.choice(draws, size=min(_OUTCOMES, draws), replace=False)
    result = np.empty(candidates)
    for index in range(candidates):
        distance = _distance(outcomes.time[:, index], outcomes.time_noise[index], truth, dice)
        if outcomes.power is not None and outcomes.power_noise is not None:
            distance = distance + _distance(
                outcomes.power[:, index], outcomes.power_noise[index], truth, dice
            )
        weights = np.exp(-0.5 * (distance - distance.min(1, keepdims=True)))
        weights /= weights.sum(1, keepdims=True)
        result[index] = (weights @ regrets).min(1).mean()
    return result


def _distance(
    values: Floats, noise: float, truth: npt.NDArray[np.int64], dice: np.random.Generator
) -> Floats:
    """Return the squared distance of each draw from outcomes, shape (outcomes, draws)."""
    width = np.hypot(noise, _SMOOTHING * values.std()) + 1e-12
    seen = values[truth] + noise * dice.standard_normal(truth.size)
    squares: Floats = ((seen[:, None] - values[None]) / width) ** 2
    return squares
