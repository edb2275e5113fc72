"""What the model misses near measured settings: a Gaussian process of the residuals.

No model of a step is exact, and its error changes little between similar settings (Kennedy and
O'Hagan 2001, doi 10.1111/1467-9868.00294). The error is correlated between settings by their
distance: predictions near measured settings follow them, and those far away have all of its spread.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wattlaw.analysis.prediction.layout import Layout

Floats = npt.NDArray[np.float64]

#: Standard deviations, in logs, of the model's error of times and of powers.
TIME_ERROR, POWER_ERROR = 0.02, 0.025
#: Distances, in logs, at which the correlation is exp(-1/2).
_GPUS, _BATCH, _LIMIT = 0.7, 0.7, 0.3
#: No limit counts as this times the highest limit or power.
_FREE = 1.2


@dataclass(frozen=True)
class Discrepancy:
    """The weights of residuals, shape (observations, targets), and the error that remains.

    ``covariance`` has shape (targets, targets).
    """

    weights: Floats
    covariance: Floats  # of targets, in logs

    @property
    def spread(self) -> Floats:
        """Return the standard deviation of the remaining error of each target."""
        spread: Floats = np.sqrt(np.maximum(0.0, np.diag(self.covariance)))
        return spread

    def draws(self, dice: np.random.Generator, count: int) -> Floats:
        """Return draws of the remaining error, shape (``count``, targets)."""
        size = self.covariance.shape[0]
        values, vectors = np.linalg.eigh(self.covariance)
        root = vectors * np.sqrt(np.maximum(0.0, values))
        drawn: Floats = dice.standard_normal((count, size)) @ root.T
        return drawn


def discrepancy(seen: Layout, wanted: Layout, error: float, noise: float) -> Discrepancy:
    """Return how the residuals of seen settings correct those that are wanted.

    Parameters
    ----------
    seen, wanted
        The settings.
    error, noise
        Standard deviations, in logs, of the model's error and of the noise of a run.
    """
    limits_w = np.concatenate([seen.power_limit_w, wanted.power_limit_w])
    highest_w = max([seen.reference.power_w, *_finite(limits_w)])
    here, there = (_features(layout, _FREE * float(highest_w)) for layout in (seen, wanted))
    own = _correlation(here, here) + (noise / error) ** 2 * np.eye(here.shape[0])
    cross = _correlation(here, there)
    weights = np.linalg.solve(own, cross)
    left = _correlation(there, there) - cross.T @ weights
    return Discrepancy(np.asarray(weights), np.asarray(error**2 * left))


def independence(layout: Layout) -> Floats:
    """Return the weight of each observation: 1 over the sum of its correlations with all.

    The model's error is the same for repeats and nearly the same for similar settings. Many of them
    are no more evidence about the parameters than few.
    """
    highest_w = max([layout.reference.power_w, *_finite(layout.power_limit_w)])
    features = _features(layout, _FREE * float(highest_w))
    weights: Floats = 1 / _correlation(features, features).sum(1)
    return weights


def _finite(values: Floats) -> Floats:
    finite: Floats = values[np.isfinite(values)]
    return finite


def _features(layout: Layout, free_w: float) -> Floats:
    clock = np.minimum(layout.clock_limit_mhz / layout.reference.clock_mhz, 1.0)
    return np.column_stack(
        [
            np.log(layout.gpus) / _GPUS,
            np.log(layout.nodes) / _GPUS,
            np.log(layout.micro) / _BATCH,
            np.log(layout.parts) / _BATCH,
            np.log(np.minimum(layout.power_limit_w, free_w)) / _LIMIT,
            np.log(clock) / _LIMIT,
            layout.precision * 10.0,
        ]
    )


def _correlation(one: Floats, other: Floats) -> Floats:
    squares = ((one[:, None] - other[None]) ** 2).sum(2)
    result: Floats = np.exp(-squares / 2)
    return result
