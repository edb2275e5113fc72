"""What the model misses near measured settings: a Gaussian process of the residuals.

No model of a step is exact, and its error changes little between similar settings (Kennedy and
O'Hagan 2001, doi 10.1111/1467-9868.00294). The error is correlated between settings by their
distance: predictions near measured settings follow them, and those far away have all of its spread.
"""

from typing import NamedTuple

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


class Discrepancy(NamedTuple):
    """The weights of residuals, shape (observations, targets), and the error that remains.

    ``spread`` is the standard deviation of each target's, in logs.
    """

    weights: Floats
    spread: Floats


def discrepancy(seen: Layout, wanted: Layout, error: float, noise: float) -> Discrepancy:
    """Return how the residuals of seen settings correct those that are wanted.

    Parameters
    ----------
    seen, wanted
        The settings.
    error, noise
        Standard deviations, in logs, of the model's error and of the noise of a run.
    """
    here, there = features(seen, wanted)
    own = correlation(here, here) + (noise / error) ** 2 * np.eye(here.shape[0])
    cross = correlation(here, there)
    weights = np.linalg.solve(own, cross)
    left = np.maximum(0.0, 1.0 - (cross * weights).sum(0))
    return Discrepancy(np.asarray(weights), np.asarray(error * np.sqrt(left)))


def independence(layout: Layout) -> Floats:
    """Return the weight of each observation: 1 over the sum of its correlations with all.

    The model's error is the same for repeats and nearly the same for similar settings. Many of them
    are no more evidence about the parameters than few.
    """
    (rows,) = features(layout)
    weights: Floats = 1 / correlation(rows, rows).sum(1)
    return weights


def features(*layouts: Layout) -> list[Floats]:
    """Return the coordinates of settings between which errors are similar, for each layout."""
    limits_w = np.concatenate([layout.power_limit_w for layout in layouts])
    highest_w = max([layouts[0].reference.power_w, *limits_w[np.isfinite(limits_w)]])
    return [_features(layout, _FREE * float(highest_w)) for layout in layouts]


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


def correlation(one: Floats, other: Floats) -> Floats:
    """Return the correlation of errors between rows of features."""
    squares = ((one[:, None] - other[None]) ** 2).sum(2)
    result: Floats = np.exp(-squares / 2)
    return result
