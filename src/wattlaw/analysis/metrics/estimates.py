"""What analyses share: error levels, criteria and tests of a fit, pooled means, comparisons."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from wattlaw.common.errors import Refused

Floats = npt.NDArray[np.float64]
Interval = tuple[float, float]
#: The share of tests that reject a true null hypothesis.
ERROR = 0.05
#: The share of intervals that contain the true value.
LEVEL = 1 - ERROR
#: Residuals of logarithms below this are rounding, not scatter.
ROUNDING = 1e-9


def f_test_p(between: float, between_df: int, within: float, within_df: int) -> float:
    """Return p of F = (between / its df) / (within / its df), of two sums of squares.

    Small where what groups differ by, or a law leaves of their means, is more than their repeats
    explain (Draper & Smith 1998, "Applied Regression Analysis", section 2.1).
    """
    ratio = (between / between_df) / (within / within_df)
    return float(special.fdtrc(between_df, within_df, ratio))


def t_interval(estimate: float, error: float, freedom: float) -> Interval:
    """Return the 95 % interval of an estimate; infinite without degrees of freedom."""
    half = float(special.stdtrit(freedom, (1 + LEVEL) / 2)) * error if freedom > 0 else np.inf
    return float(estimate - half), float(estimate + half)


@dataclass(frozen=True)
class Mean:
    """A mean of values, the variance of its error, and Student's degrees of freedom."""

    value: float
    variance: float  # missing for one value
    freedom: float

    @classmethod
    def of(cls, values: Floats) -> "Mean":
        n = len(values)
        variance = float(values.var(ddof=1)) / n if n > 1 else np.nan
        return cls(float(values.mean()), variance, n - 1)

    @classmethod
    def combined(cls, means: Sequence["Mean"], weights: Sequence[float]) -> "Mean":
        """Return a weighted sum, with the degrees of freedom of Welch and Satterthwaite."""
        variances = [weight**2 * m.variance for weight, m in zip(weights, means, strict=True)]
        value = sum(weight * m.value for weight, m in zip(weights, means, strict=True))
        variance, freedom = sum(variances), sum(m.freedom for m in means)
        if variance > 0:
            parts = (own**2 / m.freedom for own, m in zip(variances, means, strict=True))
            freedom = variance**2 / sum(parts)
        return cls(value, variance, freedom)

    @property
    def interval(self) -> Interval:
        """The 95 % interval; missing for one value."""
        if not self.freedom:
            return np.nan, np.nan
        return t_interval(self.value, self.variance**0.5, self.freedom)


@dataclass(frozen=True)
class LeastSquares:
    """Ordinary least squares of ``y``, shape (n,), on the columns of ``design``, shape (n, k)."""

    design: Floats
    y: Floats

    @cached_property
    def _inverse(self) -> Floats:
        return np.asarray(np.linalg.pinv(self.design), dtype=float)

    @cached_property
    def params(self) -> Floats:
        return np.asarray(self._inverse @ self.y, dtype=float)

    @cached_property
    def gram(self) -> Floats:
        """(X'X)^-1."""
        return self._inverse @ self._inverse.T

    @cached_property
    def residuals(self) -> Floats:
        return self.y - self.design @ self.params

    @property
    def squares(self) -> float:
        return float(self.residuals @ self.residuals)

    @cached_property
    def freedom(self) -> int:
        return len(self.y) - int(np.linalg.matrix_rank(self.design))

    @property
    def variance(self) -> float:
        return self.squares / self.freedom

    @property
    def errors(self) -> Floats:
        return np.asarray(np.sqrt(self.variance * np.diag(self.gram)))

    @property
    def r2(self) -> float:
        deviations = self.y - self.y.mean()
        return float(1 - np.divide(self.squares, deviations @ deviations))

    def interval(self, i: int) -> Interval:
        return t_interval(self.params[i], self.errors[i], self.freedom)

    def p_value(self, i: int) -> float:
        with np.errstate(divide="ignore", invalid="ignore"):
            t = np.divide(self.params[i], self.errors[i])
        return float(2 * special.stdtr(self.freedom, -abs(t)))

    def joint_p(self, chosen: slice) -> float:
        """Return p of the F test that all the chosen coefficients are 0."""
        values, gram = self.params[chosen], self.gram[chosen, chosen]
        explained = float(values @ np.linalg.pinv(gram) @ values)
        return f_test_p(explained, len(values), self.squares, self.freedom)

    def hc3_error(self, i: int) -> float:
        """Return HC3 of MacKinnon & White 1985, robust to residuals of unequal spread."""
        leverage = np.einsum("ij,ji->i", self.design, self._inverse)
        return float(np.linalg.norm(self._inverse[i] * self.residuals / (1 - leverage)))

    def cluster_errors(self, clusters: npt.NDArray[np.integer[Any]]) -> Floats:
        """Return standard errors of all coefficients, robust to what rows of a cluster share.

        Liang and Zeger 1986, Biometrika 73, 13-22, times g / (g - 1) (n - 1) / (n - k) for g
        clusters. ``clusters`` has the number of each row's, from 0 on.
        """
        count, (n, k) = int(clusters.max()) + 1, self.design.shape
        scores = np.zeros((count, k))
        np.add.at(scores, clusters, self.design * self.residuals[:, None])
        factor = count / (count - 1) * (n - 1) / (n - k)
        return np.asarray(np.sqrt(factor * ((scores @ self.gram) ** 2).sum(0)))


@dataclass(frozen=True)
class Pooled:
    """Means of samples, and the variance that they share.

    ``freedom`` is 0, and there is no variance, without repeats and where repeats are ``identical``
    up to rounding (a replay, a simulation, a coarse clock): identical repeats do not prove that
    the mean is certain.
    """

    means: Mapping[Hashable, float]
    sizes: Mapping[Hashable, int]
    variance: float  # missing without freedom
    freedom: int
    identical: bool

    def contrast(self, weights: Mapping[Any, float]) -> tuple[float, float]:
        """Return the sum of weights times means, and its error s sqrt(sum of weight^2 / n)."""
        total = sum(weight * self.means[key] for key, weight in weights.items())
        share = sum(weight**2 / self.sizes[key] for key, weight in weights.items())
        return float(total), float(np.sqrt(self.variance * share))

    def interval(self, first_key: Hashable, other: Hashable) -> tuple[float, float, float]:
        """Return the difference of two means with its 95 % t interval."""
        if first_key == other:
            return 0.0, 0.0, 0.0
        change, error = self.contrast({first_key: 1.0, other: -1.0})
        if not self.freedom:
            return change, np.nan, np.nan
        return change, *t_interval(change, error, self.freedom)


def pool(samples: Mapping[Any, Floats]) -> Pooled:
    """Return the means of ``samples``, each of one value at least, and their pooled variance.

    s^2 = sum over samples of (x - mean)^2, over n - k degrees of freedom: as many as there are
    repeats beyond the first of each. It assumes one variance, and repeats that are independent.
    """
    means = {key: float(values.mean()) for key, values in samples.items()}
    sizes = {key: len(values) for key, values in samples.items()}
    squares = sum(float(((values - means[key]) ** 2).sum()) for key, values in samples.items())
    count = sum(sizes.values())
    freedom = count - len(samples)
    is_identical = freedom > 0 and squares <= count * ROUNDING**2
    freedom = 0 if is_identical else freedom
    variance = squares / freedom if freedom else np.nan
    return Pooled(means, sizes, variance, freedom, is_identical)


_NODES = 64
_RESOLUTION = 1e-10  # of a quantile


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

    Hsu's multiple comparisons with the best (J. C. Hsu 1996, "Multiple Comparisons: Theory and
    Methods", chapter 4), on the one-sided comparisons with a control of C. W. Dunnett 1955, "A
    Multiple Comparison Procedure for Comparing Several Treatments with a Control".

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
    if len(samples) < 2:
        raise Refused("a comparison needs at least two samples")
    sizes = np.array([len(values) for values in samples], dtype=float)
    freedom = int(sizes.sum()) - len(samples)
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
    chi = np.sqrt(2 * special.gammaincinv(freedom / 2, share))
    return special.ndtri(share), chi / np.sqrt(freedom), weights / 2


@lru_cache
def _quantile(load: tuple[float, ...], freedom: int) -> float:
    loads = np.array(load)
    low, high = 0.0, float(special.stdtrit(freedom, 1 - ERROR / (2 * len(load))))  # Bonferroni
    while high - low > _RESOLUTION:  # halving; scipy.optimize takes longer to import
        middle = (low + high) / 2
        is_below = _greatest_below(middle, loads, freedom) < LEVEL
        low, high = (middle, high) if is_below else (low, middle)
    return (low + high) / 2
