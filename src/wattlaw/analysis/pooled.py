"""Means of repeats with one variance that is pooled over all of them, mostly of logarithms."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from wattlaw.analysis.laws.observations import LEVEL, ROUNDING

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Pooled:
    """Means of samples, and the variance that they share.

    ``freedom`` is 0 where nothing tells how sure a mean is: without repeats, or where repeats are
    ``alike``, the same up to rounding (a replay, a simulation, a clock that is too coarse). That
    is no proof of certainty, so there is no variance then.
    """

    means: Mapping[int, float]
    sizes: Mapping[int, int]
    variance: float  # missing without freedom
    freedom: int
    alike: bool

    def difference(self, one: int, other: int) -> tuple[float, float]:
        """Return the difference of two means, and its standard error: missing without freedom.

        s sqrt(1 / n_one + 1 / n_other). A mean does not differ from itself.
        """
        if one == other:
            return 0.0, 0.0
        share = 1 / self.sizes[one] + 1 / self.sizes[other]
        return self.means[one] - self.means[other], float(np.sqrt(self.variance * share))

    def interval(self, one: int, other: int) -> tuple[float, float, float]:
        """Return the difference of two means with its 95 % t interval."""
        change, error = self.difference(one, other)
        half = self.t((1 + LEVEL) / 2) * error if error else error
        return change, change - half, change + half

    def t(self, share: float) -> float:
        """Return the quantile of Student's t; missing without freedom."""
        return float(stats.t.ppf(share, self.freedom)) if self.freedom else np.nan


def pool(samples: Mapping[int, Floats]) -> Pooled:
    """Return the means of ``samples``, each of one value at least, and their pooled variance.

    s^2 = sum over samples of (x - mean)^2, over n - k degrees of freedom: as many as there are
    repeats beyond the first of each. It assumes one variance, and repeats that are independent.
    """
    means = {key: float(values.mean()) for key, values in samples.items()}
    squares = sum(float(((values - means[key]) ** 2).sum()) for key, values in samples.items())
    count = sum(map(len, samples.values()))
    freedom = count - len(samples)
    alike = freedom > 0 and squares <= count * ROUNDING**2
    told = 0 if alike else freedom
    return Pooled(
        means,
        {key: len(values) for key, values in samples.items()},
        squares / told if told else np.nan,
        told,
        alike,
    )


def geometric_mean(values: Floats) -> float:
    """Return exp of the mean of logarithms; of equal values exactly that value."""
    first = float(values[0])
    return first * float(np.exp(np.log(values / first).mean()))
