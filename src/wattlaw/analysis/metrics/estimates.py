"""Statistics that analyses share: levels, intervals, tests, means, least squares, criteria."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy import special

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

    Draper & Smith 1998, "Applied Regression Analysis", section 2.1.
    """
    ratio = (between / between_df) / (within / within_df)
    return float(special.fdtrc(between_df, within_df, ratio))


def t_interval(estimate: float, error: float, freedom: float) -> Interval:
    """Return the 95 % interval of an estimate; infinite without degrees of freedom."""
    half = float(special.stdtrit(freedom, (1 + LEVEL) / 2)) * error if freedom > 0 else np.inf
    return float(estimate - half), float(estimate + half)


def deviance(squares: float, n: int) -> float:
    """Return -2 ln L of normal noise with this sum of squares, without what ``n`` values share.

    Squares are taken as no smaller than rounding makes them.
    """
    return n * math.log(max(squares, n * ROUNDING**2) / n)


def aicc(deviance: float, n: int, k: int) -> float | None:
    """Return deviance + 2 k + 2 k (k + 1) / (n - k - 1); None if ``n <= k + 1``.

    Akaike's criterion as corrected for few values by Hurvich & Tsai 1989, Biometrika 76, 297-307;
    ``k`` counts the noise too.
    """
    return None if n <= k + 1 else deviance + 2 * k + 2 * k * (k + 1) / (n - k - 1)


@dataclass(frozen=True)
class Mean:
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


def pooled_variance(samples: Iterable[Floats]) -> tuple[float, int]:
    """Return the variance that samples of one value at least share, and its degrees of freedom.

    s^2 = sum over samples of (x - mean)^2, over n - k. The freedom is 0, and the variance missing,
    without repeats, and where repeats are identical up to rounding (a replay, a coarse clock):
    identical repeats do not prove that the mean is certain.
    """
    every = list(samples)
    squares = sum(float(((values - values.mean()) ** 2).sum()) for values in every)
    count = sum(map(len, every))
    freedom = count - len(every) if squares > count * ROUNDING**2 else 0
    return squares / freedom if freedom else np.nan, freedom
