"""Which of several means may be the best, and how far the others are from it.

Hsu's multiple comparisons with the best: J. C. Hsu 1996, "Multiple Comparisons: Theory and
Methods", chapter 4, on the one-sided comparisons with a control of C. W. Dunnett 1955, "A Multiple
Comparison Procedure for Comparing Several Treatments with a Control".
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy import optimize, special, stats

from wattlaw.analysis.levels import ERROR, LEVEL
from wattlaw.errors import Refused

Floats = npt.NDArray[np.float64]
_NODES = 64


@dataclass(frozen=True)
class BestComparison:
    """Distance of each mean from the best of the others, bigger being better.

    ``low`` and ``high`` bound mean_i - max over j != i of mean_j. Which of the means have a high
    below 0, so are not the best, and all ``low`` hold together at 95 %; how far such a high is
    below 0 holds at 95 % for that mean alone. ``p_value`` is that of "i is the best".
    """

    mean: Floats
    low: Floats
    high: Floats
    p_value: Floats


def compare_with_best(samples: Sequence[Floats]) -> BestComparison:
    """Compare each sample's mean with the best of the others.

    With s^2 the variance pooled over the k samples, n_i their sizes and d_j the 95 % quantile of
    the greatest of the k - 1 t statistics against sample j, the bound of i below j is L_ij =
    mean_i - mean_j - d_j s sqrt(1/n_i + 1/n_j). Then high_j = min over i of -L_ij, and low_i
    = min(0, min of L_ij over those j != i with high_j > 0). Assumes independent, normal values of
    one variance.

    Raises
    ------
    Refused
        There are fewer than two samples, no repeats, or repeats that are all the same.
    """
    sizes = np.array([len(values) for values in samples], dtype=float)
    freedom = int(sizes.sum()) - len(samples)
    if len(samples) < 2:
        raise Refused("a comparison needs at least two samples")
    if freedom < 1:
        raise Refused("no repeats, so the random variation is unknown; measure repeats")
    mean = np.array([values.mean() for values in samples])
    squares = sum(float(((values - values.mean()) ** 2).sum()) for values in samples)
    if squares <= (1e-12 * np.abs(mean).max()) ** 2:
        raise Refused("all repeats are identical, so the random variation is unknown: change seeds")
    error = np.sqrt(squares / freedom * (1 / sizes[:, None] + 1 / sizes[None, :]))
    difference = mean[:, None] - mean[None, :]
    below = np.full_like(difference, np.inf)  # L_ij
    p_value = np.ones(len(samples))
    for j, size in enumerate(sizes):
        is_other = np.arange(len(sizes)) != j
        load = np.sqrt(sizes[is_other] / (sizes[is_other] + size))
        d = _quantile(tuple(sorted(load)), freedom)
        below[is_other, j] = difference[is_other, j] - d * error[is_other, j]
        t = (difference[is_other, j] / error[is_other, j]).max()
        p_value[j] = 1 - _greatest_below(float(t), load, freedom)
    high = -below.max(axis=0, initial=-np.inf, where=np.isfinite(below))
    candidates = high > 0
    low = np.minimum(0, below[:, candidates].min(axis=1))
    return BestComparison(mean, low, high, p_value)


def _greatest_below(d: float, load: Floats, freedom: int) -> float:
    """Return the probability that all t statistics against one control are at most ``d``.

    Their correlations are products of loads, l_i = sqrt(n_i / (n_i + n_control)), so that given the
    control's mean z and the standard deviation u they are independent: the mean over z and u of
    the product over i of Phi((d u + l_i z) / sqrt(1 - l_i^2)). The integrals are by Gauss
    quadrature: the same value each time, and quicker than random sampling.
    """
    z, u, weights = _nodes(freedom)
    at = (d * u[:, None, None] + load * z[None, :, None]) / np.sqrt(1 - load**2)
    return float(weights @ special.ndtr(at).prod(axis=2) @ weights)


@lru_cache
def _nodes(freedom: int) -> tuple[Floats, Floats, Floats]:
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    share = (nodes + 1) / 2
    return special.ndtri(share), stats.chi.ppf(share, freedom) / np.sqrt(freedom), weights / 2


@lru_cache
def _quantile(load: tuple[float, ...], freedom: int) -> float:
    def beyond(d: float) -> float:
        return _greatest_below(d, np.array(load), freedom) - LEVEL

    top = float(stats.t.ppf(1 - ERROR / (2 * len(load)), freedom))  # Bonferroni and more
    return float(optimize.brentq(beyond, 0.0, top, xtol=1e-6))
